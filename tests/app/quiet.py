"""Waiting until an app has nothing left to do: by what it is doing, never by the clock."""

import asyncio
import time
from concurrent.futures.thread import _WorkItem
from contextlib import suppress
from typing import Any

import pytest
from textual import app as textual_app
from textual import pilot as textual_pilot
from textual._context import active_app
from textual.app import App
from textual.message_pump import MessagePump
from textual.screen import Screen
from textual.worker import WorkerCancelled

from specchat.app.ui.app import SpecChat
from specchat.app.ui.pump import Pace, Pump
from tests.waiting import PATIENCE_S

FOR_A_PERSON = ("rename", "asking", "loading", "messages", "reading", "calls")
"""Groups of workers that wait until a user or a test answers."""
LOOKS = 5
"""What a thread or the driver hands to the event loop is a message after fewer turns of it."""
SPINS = 200
"""What takes more turns waits for a thread, which needs the processor."""

_jobs: set[_WorkItem] = set()
"""What executors were given, and have not told the end of."""


def wait_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have Textual's pilot wait for the app itself, and note what threads are given to do.

    The pilot would guess: that nothing is left to do if the process has computed little for 20 ms. On a busy machine
    it computes little whatever there is to do.
    """

    async def handled(*_: float) -> None:
        await all_handled(active_app.get())

    for module in (textual_app, textual_pilot):
        monkeypatch.setattr(module, "wait_for_idle", handled)

    made, run = _WorkItem.__init__, _WorkItem.run

    def note(job: _WorkItem, *parts: Any, **named: Any) -> None:
        made(job, *parts, **named)
        _jobs.add(job)

    def forget(job: _WorkItem, *parts: Any) -> None:
        try:
            run(job, *parts)
        finally:
            _jobs.discard(job)

    _jobs.clear()
    monkeypatch.setattr(_WorkItem, "__init__", note)
    monkeypatch.setattr(_WorkItem, "run", forget)


async def prepared(app: SpecChat) -> None:
    """Wait until the session is connected or has failed."""
    await asyncio.wait_for(app.prepared.wait(), PATIENCE_S)


async def all_handled(app: App[Any]) -> None:
    """Wait until every message is handled and what follows from it is on screen. Threads may still be at work."""
    looks, turns, end = 0, 0, time.monotonic() + PATIENCE_S
    while looks < LOOKS and not app._exit and app._exception is None:
        await asyncio.sleep(0 if turns < SPINS else 0.001)
        looks, turns = looks + 1, turns + 1
        busy = [pump for pump in (app, *app._registry) if not _waits(pump)]
        if busy:
            looks = 0
            assert time.monotonic() < end, f"still at work: {busy}"
        elif app._resize_timer is not None:  # would be taken in a little later
            looks = 0
            app._check_resize()
        elif _is_to_be_drawn(app.screen):
            looks = 0
            app.screen._on_timer_update()


async def all_done(app: App[Any]) -> None:
    """Wait until workers and threads have done what they were given, too; not for workers that wait for a person."""
    while not app._exit:
        await all_handled(app)
        workers = [each for each in app.workers if each.group not in FOR_A_PERSON and not each.is_finished]
        if not workers and not _jobs:
            break
        for worker in workers:
            with suppress(WorkerCancelled):  # a newer one took its place
                await asyncio.wait_for(worker.wait(), PATIENCE_S)
        end = time.monotonic() + PATIENCE_S
        while _jobs:
            assert time.monotonic() < end, f"{len(_jobs)} jobs of threads have not ended"
            await asyncio.sleep(0.001)


async def show_all(app: App[Any], *pumps: Pump) -> None:
    """Show all records and their consequences, with enough frames to draw each part."""
    for _ in range(2):
        await all_done(app)
        for pump in pumps:
            for _ in range(Pace().figures_every):
                pump.run()
    await all_done(app)


def _waits(pump: MessagePump) -> bool:
    """Whether it has handled everything and waits for its next message, or has ended."""
    task = pump._task
    if task is None and not isinstance(pump, App):
        return True
    if task is not None and task.done():
        return True
    queue = pump._message_queue
    waiting = any(not waiter.done() for waiter in queue.ready_event._waiters)
    return waiting and queue.empty() and not pump._next_callbacks


def _is_to_be_drawn(screen: Screen[Any]) -> bool:
    return bool(
        screen._layout_required
        or screen._scroll_required
        or screen._repaint_required
        or screen._recompose_required
        or screen._dirty_widgets
        or screen._callbacks
    )
