"""Columns of the timeline: one time is in one column in every lane."""

from bisect import bisect_right
from collections import Counter
from dataclasses import replace
from itertools import pairwise

from rich.style import Style

from specchat.app.chat.reply import Reply
from specchat.app.ui.rendering.timeline import (
    MOST,
    PAUSE,
    SCALES_MS,
    SIGNS,
    USUAL,
    TimelineLayout,
    TimelineSlot,
    fates_of,
    token_signs,
)
from specchat.engine import Fate, Round
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


def test_a_pause_is_cut_short() -> None:
    (reply,) = replies_of("detail")
    first, second = reply.rounds[:2]
    lanes = TimelineLayout([replied([first, replace(second, at=second.at + 3600)])])
    assert lanes.slots[1].left - lanes.slots[0].right == PAUSE
    assert lanes.slots[1].late
    assert not lanes.slots[0].late


def test_slow_first_rounds_do_not_make_all_bars_alike() -> None:
    """The first rounds take 500 ms, the others 56: the scale follows, and the slow ones are as much longer."""
    (whole,) = replies_of("detail")
    reply, now = Reply(), 0.0
    for number, record in enumerate(whole.rounds[:20]):
        seconds = 0.5 if number < 3 else 0.056
        now += seconds
        reply.add(replace(record, at=now, draft_s=0.0, verify_s=seconds, rest_s=0.0, number=number))
    lanes = TimelineLayout([reply])
    slow, fast = (slot.right - slot.left for slot in (lanes.slots[0], lanes.slots[-1]))
    assert lanes.ms in SCALES_MS
    assert abs(fast - USUAL) <= 2
    assert slow > 6 * fast


def test_a_bar_that_is_too_long_is_cut_and_marked() -> None:
    (reply,) = replies_of("detail")
    *rounds, last = reply.rounds[:7]
    long = replace(last, at=last.at + 60, verify_s=60.0)
    slot = TimelineLayout([replied([*rounds, long])]).slots[-1]
    assert slot.cut
    assert slot.right - slot.left == MOST


def test_lanes_of_other_chats_end_with_mine() -> None:
    mine, other, _ = replies_of("lanes")
    cut = replied(mine.rounds[:5])
    running = TimelineLayout([cut, other], own=1)
    assert running.count(1) == len(other.rounds)
    cut.fail("ended")
    ended = TimelineLayout([cut, other], own=1)
    assert 0 < ended.count(1) < len(other.rounds)
    assert all(record.at - record.seconds < cut.rounds[-1].at for record in other.rounds[: ended.count(1)])


def test_rows_are_broken_between_rounds_and_stay_as_rounds_are_added() -> None:
    (reply,) = replies_of("detail")
    lanes, room = TimelineLayout([reply]), 60
    rows = lanes.rows(room)
    assert len(rows) > 2
    for slot in lanes.slots:
        row = bisect_right(rows, slot.left) - 1
        assert rows[row] < slot.left < slot.right <= rows[row] + room
    fewer = TimelineLayout([replied(reply.rounds[:-5])], lanes.scale).rows(room)
    assert fewer == rows[: len(fewer)]


def test_counts_have_the_colours_of_their_fates() -> None:
    styles = {f"sign--{fate.value}": Style(meta={"fate": fate}) for fate in Fate} | {"base": Style()}
    for record in (record for name in ("tree", "usual") for reply in replies_of(name) for record in reply.rounds):
        counts = Counter(fates_of(record))
        for width in range(1, counts.total() + 1):
            segments = list(token_signs(record, TimelineSlot(0.0, 1.0, 0, width), styles))
            assert sum(len(segment.text) for segment in segments) == width
            assert not any(segment.text[:1].isdigit() for segment in segments[1:]), "a count without a sign is first"
            for text, style, _ in segments[:-1]:
                fate = style.meta["fate"]
                assert width == 1 or int(text.strip(SIGNS[fate]) or 1) == counts[fate]


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
