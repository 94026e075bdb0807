"""Delivery of events on the server's loop: all of them, in order, in few deliveries."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from threading import Thread

from specchat.app.server.calls import PACE_S, LoopOutbox
from specchat.engine import Event, Fate, Finished, FinishReason, Round


def round_of(number: int, request: str = "r") -> Round:
    return Round(request, number, 1, "none", 0, (), (), (), (), (), 0, 1, Fate.PLAIN, (), "x", 0.0, 0.0, 0.0, 0.0, 1)


def delivered(produce: Callable[[LoopOutbox], None]) -> list[tuple[float, list[Event]]]:
    """Time and events of each delivery, while a thread puts events into the outbox and for some time after."""

    async def main() -> None:
        begun = time.monotonic()
        outbox = LoopOutbox(asyncio.get_running_loop(), lambda events: found.append((time.monotonic() - begun, events)))
        thread = Thread(target=produce, args=(outbox,))
        thread.start()
        while thread.is_alive():
            await asyncio.sleep(0.01)
        await asyncio.sleep(PACE_S * 2)

    found: list[tuple[float, list[Event]]] = []
    asyncio.run(main())
    return found


def test_short_rounds_share_a_delivery_and_none_is_lost() -> None:
    rounds = [round_of(number) for number in range(100)]

    def produce(outbox: LoopOutbox) -> None:
        for each in rounds:
            outbox.put(each)
            time.sleep(PACE_S / 8)

    found = delivered(produce)
    assert [event for _, events in found for event in events] == rounds
    assert found[0][1][0] == rounds[0]
    assert len(found) < 40


def test_first_and_last_of_a_reply_do_not_wait() -> None:
    ended = Finished("r", FinishReason.LENGTH, "", "", 0.0)

    def produce(outbox: LoopOutbox) -> None:
        for event in (round_of(0), round_of(0, "other"), ended):
            outbox.put(event)
            time.sleep(PACE_S / 3)

    found = delivered(produce)
    assert [event for _, events in found for event in events] == [round_of(0), round_of(0, "other"), ended]
    assert len(found) >= 2 or found[0][0] > PACE_S, "only a busy machine delivers them together"


def test_the_rows_of_a_round_are_delivered_together() -> None:
    rows = [round_of(1, str(row)) for row in range(64)]
    found = delivered(lambda outbox: [outbox.put(row) for row in rows] and None)
    assert [event for _, events in found for event in events] == rows
    assert len(found) <= 2
