"""Events on their way to a loop, whose time is turned by hand: all of them, in order, in few deliveries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from specchat.app.server.loop_outbox import GATHER_S, PACE_S, LoopOutbox
from specchat.engine import Event, Fate, Finished, FinishReason, Round


class Timer:
    """What `call_later` gives."""

    def __init__(self, at: float, callback: Callable[[], None]) -> None:
        self.at, self.callback = at, callback
        self.open = True

    def cancel(self) -> None:
        """Do not call it any more."""
        self.open = False


class Loop(asyncio.AbstractEventLoop):
    """A loop that runs when it is told to."""

    def __init__(self) -> None:
        self.now, self.woken = 0.0, 0
        self.timers: list[Timer] = []
        self.calls: list[Callable[[], None]] = []

    def call_soon_threadsafe(self, callback: Callable[..., Any], *arguments: Any, context: Any = None) -> Any:  # noqa: ARG002
        """From the engine's thread."""
        self.woken += 1
        self.calls.append(lambda: callback(*arguments))

    def call_later(self, delay: float, callback: Callable[..., Any], *arguments: Any, context: Any = None) -> Any:  # noqa: ARG002
        """From the loop."""
        self.timers.append(Timer(self.now + delay, callback))
        return self.timers[-1]

    def run_until(self, now: float) -> None:
        """Do what is due."""
        while True:
            while self.calls:
                self.calls.pop(0)()
            due = [timer for timer in self.timers if timer.open and timer.at <= now]
            if not due:
                self.now = now
                return
            first = min(due, key=lambda timer: timer.at)
            first.open, self.now = False, max(self.now, first.at)
            first.callback()


def round_of(number: int, request: str = "r") -> Round:
    return Round(request, number, 1, "none", 0, (), (), (), (), (), 0, 1, Fate.PLAIN, (), "x", 0.0, 0.0, 0.0, 0.0, 1)


def test_short_rounds_share_a_delivery_and_none_is_lost() -> None:
    loop, delivered, put = Loop(), list[list[Event]](), list[Event]()
    outbox = LoopOutbox(loop, delivered.append)
    period = PACE_S / 4
    for number in range(100):
        put.append(round_of(number))
        outbox.put(put[-1])
        loop.run_until((number + 1) * period)
    assert delivered[0] == put[:1], "the first text does not wait for more"
    assert len(delivered) < 40
    assert loop.woken < 5, "the engine wakes nobody who will look soon"
    loop.run_until(loop.now + PACE_S)
    assert [event for events in delivered for event in events] == put
    loop.run_until(loop.now + 1)
    count = len(delivered)
    assert not [timer for timer in loop.timers if timer.open], "an idle server does nothing"
    outbox.put(round_of(100))
    loop.run_until(loop.now + GATHER_S)
    assert delivered[count:] == [[round_of(100)]]


def test_first_and_last_of_a_reply_do_not_wait_for_their_turn() -> None:
    loop, delivered = Loop(), list[list[Event]]()
    outbox = LoopOutbox(loop, delivered.append)
    ended = Finished("r", FinishReason.LENGTH, "", "", 0.0)
    for event in (round_of(0), round_of(0, "other"), ended):
        outbox.put(event)
        loop.run_until(loop.now + GATHER_S)
    assert delivered == [[round_of(0)], [round_of(0, "other")], [ended]]
    outbox.put(round_of(1))
    loop.run_until(loop.now + GATHER_S)
    assert len(delivered) == 3


def test_the_rows_of_a_round_are_delivered_together() -> None:
    loop, delivered = Loop(), list[list[Event]]()
    outbox = LoopOutbox(loop, delivered.append)
    for number in range(3):
        rows = [round_of(number, str(row)) for row in range(64)]
        outbox.put(rows[0])
        loop.run_until(loop.now + GATHER_S / 2)
        for row in rows[1:]:
            outbox.put(row)
        loop.run_until(loop.now + PACE_S * 2)
        assert delivered[number:] == [rows]
