"""Lanes: who has the next turn, what a lane's clock counts, and that no lane helps or slows the other."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from specchat.engine import Admitted, EngineConfig, Event, Finished, Outbox, Prefilled, Request, Round
from specchat.engine.lanes.engine import LaneEngine
from specchat.engine.lanes.order import Order
from specchat.engine.worker.assembly import assemble_loaded
from tests.engine.tiny import ask, ended, ids_of, rounds_of, tiny_engine, tiny_model

PROMPT = "ababababab " * 8


@contextmanager
def lane_engine(order: Order = Order.INTERLEAVED) -> Iterator[LaneEngine]:
    model = tiny_model()
    config = EngineConfig("tiny", Path(), slots=1, context=384, prefill_chunk=32)
    engine = LaneEngine((config, config), order, lambda config, _: assemble_loaded(config, model))
    engine.start()
    engine.wait_ready(60)
    try:
        yield engine
    finally:
        engine.close()


def both(engine: LaneEngine, left: Request, right: Request) -> tuple[list[list[Event]], list[tuple[int, Event]]]:
    """The events of each lane, and all of them in the order in which they came."""
    outbox = Outbox()
    lanes = {left.request_id: 0, right.request_id: 1}
    engine.submit(left, outbox, 0)
    engine.submit(right, outbox, 1)
    events: list[list[Event]] = [[], []]
    in_order = []
    while not all(lane and isinstance(lane[-1], Finished) for lane in events):
        event = outbox.get(120)
        assert event is not None, "no event for 30 seconds"
        lane = lanes[event.request_id]  # type: ignore[union-attr]
        events[lane].append(event)
        in_order.append((lane, event))
    return events, in_order


def pair(text: str = PROMPT, **options: object) -> tuple[Request, Request]:
    return (
        ask(text, "left", drafter="none", max_tokens=60, **options),
        ask(text, "right", drafter="ngram", gamma=3, max_tokens=60, **options),
    )


@pytest.mark.parametrize("order", Order)
def test_lanes_say_what_an_engine_alone_says(order: Order) -> None:
    with lane_engine(order) as engine:
        lanes, in_order = both(engine, *pair())
    with tiny_engine() as alone:
        expected = [list(alone.stream(request)) for request in pair()]
    assert [ids_of(events) for events in lanes] == [ids_of(events) for events in expected]
    assert {e.rows for events in lanes for e in rounds_of(events)} == {1}
    turns = [lane for lane, event in in_order if isinstance(event, Round)]
    assert (turns == sorted(turns)) is (order is Order.SEQUENTIAL)


def test_a_lane_s_clock_counts_its_own_work() -> None:
    with lane_engine() as engine:
        began = time.perf_counter()
        lanes, _ = both(engine, *pair())
        elapsed = time.perf_counter() - began
    starts = [next(e.at - e.queued_s for e in lane if isinstance(e, Admitted)) for lane in lanes]
    spent = [lane[-1].at - start for lane, start in zip(lanes, starts, strict=True)]
    assert sum(spent) <= elapsed
    for lane, seconds in zip(lanes, spent, strict=True):
        assert 0 < sum(e.seconds for e in lane if isinstance(e, Round | Prefilled)) <= seconds


def test_both_lanes_read_the_same_part_of_a_prompt() -> None:
    with lane_engine() as engine:
        first, _ = both(engine, *pair())
        second, _ = both(engine, *pair(PROMPT + PROMPT))
    for turn in (first, second):
        read = [[(e.done, e.total) for e in lane if isinstance(e, Prefilled)] for lane in turn]
        assert read[0] == read[1]
    reused = [next(e.reused_tokens for e in lane if isinstance(e, Admitted)) for lane in second]
    assert reused[0] == reused[1]
    assert reused[0] > 0
    assert reused[0] % 32 == 0


def test_a_reply_can_be_gone_on_from_to_ask_for_the_target_s_choice() -> None:
    with lane_engine() as engine:
        lanes, _ = both(engine, *pair())
        tokens = ids_of(lanes[0])
        outbox = Outbox()
        probe = ask(PROMPT, "probe", drafter="none", max_tokens=1, detail=2, reply_ids=tuple(tokens[:10]))
        engine.submit(probe, outbox)
        events = ended(outbox)
        # The reply's part of the cache is not used again: the other lane has none of it.
        again, _ = both(engine, *pair())
    assert ids_of(events) == [tokens[10]]
    (only,) = (e for e in events if isinstance(e, Round))
    assert len(only.detail[0].target) == 2
    assert len({next(e.reused_tokens for e in lane if isinstance(e, Admitted)) for lane in again}) == 1


def test_a_lane_without_its_drafter_refuses_and_the_other_goes_on() -> None:
    with lane_engine() as engine:
        left, _ = pair()
        lanes, _ = both(engine, left, ask(PROMPT, "right", drafter="head"))
    assert len(ids_of(lanes[0])) == 60
    assert "drafter 'head' is not available" in lanes[1][-1].message  # type: ignore[union-attr]


def test_cancel_ends_one_lane() -> None:
    with lane_engine() as engine:
        outbox = Outbox()
        engine.submit(ask(PROMPT, "left", drafter="none", max_tokens=200), outbox, 0)
        engine.cancel("left")
        assert ended(outbox)[-1].reason == "cancelled"
