"""Rounds one at a time: pausing, stepping, resuming, and asking for detail in the middle of a reply."""

import threading
from collections.abc import Iterator

import pytest

from specchat.engine import Engine, EngineError, Event, Finished, FinishReason, Outbox, Request, Round
from tests.engine.tiny import ask, ended, ids_of, tiny_engine

PATIENCE = 120
QUIET = 0.05
"""Seconds in which a running engine would have run many rounds."""


@pytest.fixture
def engine() -> Iterator[Engine]:
    with tiny_engine() as running:
        yield running


def paused(engine: Engine, *requests: Request) -> list[Outbox]:
    """Submit requests that wait for steps; returns the outboxes of their events."""
    engine.pause()
    boxes = [Outbox() for _ in requests]
    for request, box in zip(requests, boxes, strict=True):
        engine.submit(request, box)
    return boxes


def until_round(box: Outbox) -> list[Event]:
    """Events up to and with the next round, or the end."""
    events: list[Event] = []
    while not events or not isinstance(events[-1], Round | Finished):
        event = box.get(PATIENCE)
        assert event is not None, f"no event for {PATIENCE} seconds"
        events.append(event)
    return events


def test_a_step_is_one_round_and_the_reply_is_the_same(engine: Engine) -> None:
    request = ask("abcabcabcabc", max_tokens=40)
    whole = ids_of(engine.stream(request))
    (box,) = paused(engine, request)
    assert box.get(QUIET) is None
    stepped: list[Event] = []
    for number in range(4):
        engine.step()
        stepped += until_round(box)
        assert stepped[-1].number == number
        assert box.get(QUIET) is None
    engine.resume()
    stepped += ended(box)
    assert ids_of(stepped) == whole


def test_paused_time_is_not_time_of_the_reply(engine: Engine) -> None:
    (box,) = paused(engine, ask("hello", max_tokens=20, gamma=0))
    for _ in range(3):
        assert box.get(QUIET) is None
        before = engine.clock()
        assert box.get(QUIET) is None
        assert engine.clock() == before, "the clock of all events stands still"
        engine.step()
        until_round(box)


def test_a_paused_reply_can_be_cancelled(engine: Engine) -> None:
    (box,) = paused(engine, ask("hello", max_tokens=200))
    engine.step()
    until_round(box)
    engine.cancel("r")
    assert ended(box)[-1].reason is FinishReason.CANCELLED


def test_a_paused_engine_closes() -> None:
    with tiny_engine() as engine:
        (box,) = paused(engine, ask("hello", max_tokens=200))
        engine.step()
        until_round(box)
    assert isinstance(ended(box)[-1], Finished)
    assert not any(thread.name == "engine" for thread in threading.enumerate())


def test_detail_begins_and_ends_within_a_reply(engine: Engine) -> None:
    (box,) = paused(engine, ask("hello", max_tokens=200))
    depths = []
    for detail in (0, 3, 0):
        engine.set_detail("r", detail)
        engine.step()
        last = until_round(box)[-1]
        depths.append({len(each.target) for each in last.detail})
    assert depths == [set(), {3}, set()]
    with pytest.raises(EngineError, match="-1"):
        engine.set_detail("r", -1)
