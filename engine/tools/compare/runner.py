"""Runs both lanes over prompts, in one order or both, with repetitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Protocol

from specchat.engine.events import Event
from specchat.engine.lanes.clock import Order
from specchat.engine.lanes.engine import LaneReady
from specchat.engine.outbox import Outbox
from specchat.engine.request import Request
from specchat.engine.tools.compare.figures import Comparison, LaneTally, top2_gap
from specchat.engine.tools.runner import Say, collect

Ask = Callable[[int, str, str], Request]
"""Makes a lane's request from lane index, request id and prompt."""
WARM_UP = "Say hello."
WARM_UP_TOKENS = 8
_WAIT_S = 1.0
_numbers = count()


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of one prompt in both lanes."""

    prompt: int
    """Index of the prompt."""
    order: Order
    comparison: Comparison
    gap: float | None
    """Difference of the target's two largest logits at the first difference of greedy replies; else None."""


class Lanes(Protocol):
    """Two lanes that answer requests. `LaneEngine` has them on one device."""

    order: Order

    @property
    def lanes(self) -> Sequence[LaneReady]:
        """Loaded models of each lane."""

    @property
    def same_target(self) -> bool:
        """Whether both have the same target, so that their texts can be compared."""

    def submit(self, request: Request, outbox: Outbox | None = None, lane: int = 0) -> None:
        """Submit a request to a lane."""


def run_trials(
    engine: Lanes,
    ask: Ask,
    prompts: Sequence[str],
    orders: Sequence[Order],
    repeat: int | None,
    say: Say,
    tell: Callable[[Sequence[Trial]], None] = lambda _trials: None,
) -> list[Trial]:
    """Run every prompt in every order, `repeat` times; orders alternate. ctrl+c ends it with the trials so far.

    Args:
        ask: makes the requests.
        repeat: None to repeat without end.
        say: called with one-line progress messages.
        tell: called with all trials so far after each.

    Raises:
        EngineError: a request failed.
    """
    say("warming up")
    _warm_up(engine, ask)
    trials: list[Trial] = []
    of = "" if repeat is None else f" of {repeat}"
    try:
        for number in count() if repeat is None else range(repeat):
            for prompt, text in enumerate(prompts):
                for order in orders:
                    say(f"prompt {prompt + 1} of {len(prompts)}, run {number + 1}{of}, {order}")
                    engine.order = order
                    trials.append(_trial(engine, ask, prompt, text))
                    tell(trials)
    except KeyboardInterrupt:
        if not trials:
            raise
    return trials


def _trial(engine: Lanes, ask: Ask, prompt: int, text: str) -> Trial:
    requests = [ask(lane, f"compare-{next(_numbers)}", text) for lane in (0, 1)]
    tallies = [LaneTally(lane.draft_share) for lane in engine.lanes]
    for events, tally in zip(run_lanes(engine, requests), tallies, strict=True):
        for event in events:
            tally.add(event)
    comparison = Comparison(tallies[0], tallies[1], same_target=engine.same_target)
    gap = None
    if comparison.same_target and not comparison.identical and all(request.sampling.greedy for request in requests):
        outbox = Outbox()
        probe = submit_probe(engine, requests[0], comparison, outbox)
        gap = top2_gap(_collect(outbox, [probe])[0])
    return Trial(prompt, engine.order, comparison, gap)


def submit_probe(engine: Lanes, request: Request, comparison: Comparison, outbox: Outbox) -> str:
    """Request one token after the common part of both replies, with top-2 detail; returns the request's id."""
    shared = comparison.left.tokens[: comparison.difference]
    name = f"probe-{next(_numbers)}"
    probe = Request(
        name,
        request.messages,
        sampling=request.sampling,
        drafter="none",
        gamma=0,
        max_tokens=1,
        detail=2,
        reply_ids=tuple(shared),
    )
    engine.submit(probe, outbox)
    return name


def run_lanes(engine: Lanes, requests: Sequence[Request]) -> list[list[Event]]:
    """Run one request in each lane; returns the events of each.

    Raises:
        EngineError: a request failed.
    """
    outbox = Outbox()
    for lane, request in enumerate(requests):
        engine.submit(request, outbox, lane)
    return _collect(outbox, [request.request_id for request in requests])


def _collect(outbox: Outbox, names: Sequence[str]) -> list[list[Event]]:
    """Events of these requests, once all have ended."""
    events: dict[str, list[Event]] = {name: [] for name in names}
    left = len(names)
    while left:
        event = outbox.get(_WAIT_S)
        if event is not None:
            left -= collect([event], events)
    return list(events.values())


def _warm_up(engine: Lanes, ask: Ask) -> None:
    requests = [replace(ask(lane, f"warm-up-{lane}", WARM_UP), max_tokens=WARM_UP_TOKENS) for lane in (0, 1)]
    run_lanes(engine, requests)
