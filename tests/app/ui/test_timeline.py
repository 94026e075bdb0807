"""Columns of the timeline: one time is in one column in every lane."""

from dataclasses import replace
from itertools import pairwise

from specchat.app.chat.reply import Reply
from specchat.app.ui.rendering.timeline import (
    MOST,
    TimelineLayout,
)
from specchat.engine import Round
from tests.app.recorded import events_of_requests, replied, trace


def replies_of(name: str) -> list[Reply]:
    return [replied(e for e in events if isinstance(e, Round)) for events in events_of_requests(trace(name))]


def test_rounds_of_one_batch_share_their_columns() -> None:
    replies = replies_of("lanes")
    lanes = TimelineLayout(replies)
    by_time: dict[float, set[tuple[int, int]]] = {}
    for lane, reply in enumerate(replies):
        for index, record in enumerate(reply.rounds):
            slot = lanes.slot(lane, index)
            by_time.setdefault(record.verify_s, set()).add((slot.left, slot.right))
    assert all(len(columns) == 1 for columns in by_time.values())
    assert len(lanes.slots) == len(by_time)


def test_slots_do_not_touch_and_have_the_length_of_their_time() -> None:
    lanes = TimelineLayout(replies_of("detail"))
    for before, after in zip(lanes.slots, lanes.slots[1:], strict=False):
        assert after.left > before.right
    for slot in lanes.slots:
        cells = (slot.end - slot.start) * 1000 / lanes.ms
        assert abs(slot.right - slot.left - cells) <= 1 or (slot.cut and cells > slot.right - slot.left == MOST)


def test_rounds_that_overlap_by_microseconds_are_all_drawn() -> None:
    """Clocks are read one after the other: a round may seem to begin 4 µs before the one before it has ended."""
    (whole,) = replies_of("detail")
    rounds, now = [], 0.0
    for record in whole.rounds:
        now += record.seconds - 4e-6
        rounds.append(replace(record, at=now))
    lanes = TimelineLayout([replied(rounds)])
    columns = [(lanes.slot(0, index).left, lanes.slot(0, index).right) for index in range(len(rounds))]
    assert all(before[1] < after[0] for before, after in pairwise(columns))
    assert [lanes.round_at(0, left) for left, _ in columns] == [*range(len(rounds))]
    assert [*lanes.visible(0, 0, lanes.width)] == [*range(len(rounds))]
