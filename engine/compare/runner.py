"""Runs both lanes over prompts, as often as asked, in one order or both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count

from engine.compare.figures import Comparison, LaneTally, top2_gap
from engine.errors import EngineError
from engine.events import Event, Finished, FinishReason
from engine.lane_engine import LaneEngine
from engine.lanes import Order
from engine.outbox import Outbox
from engine.request import Request

Ask = Callable[[int, str, str], Request]
"""A request of a lane: its number, an id, and the prompt."""
WARM_UP = "Say hello."
WARM_UP_TOKENS = 8
_WAIT_S = 1.0
_numbers = count()


@dataclass(frozen=True, slots=True)
class Trial:
    """One prompt in both lanes, once."""

    prompt: int
    """Its number, from 0."""
    order: Order
    comparison: Comparison
    gap: float | None
    """Where greedy texts differ: the target's top-2 gap at the first difference, in logits."""


def run_trials(
    engine: LaneEngine,
    ask: Ask,
    prompts: Sequence[str],
    orders: Sequence[Order],
    repeat: int,
    say: Callable[[str], None],
) -> list[Trial]:
    """Every prompt in every order, `repeat` times over; orders take turns.

    Args:
        ask: makes the requests.
        say: told in one line how far it is.

    Raises:
        EngineError: a lane could not answer.
    """
    say("warming up")
    _warm_up(engine, ask)
    trials = []
    for number in range(repeat):
        for prompt, text in enumerate(prompts):
            for order in orders:
                say(f"prompt {prompt + 1} of {len(prompts)}, run {number + 1} of {repeat}, {order}")
                engine.order = order
                trials.append(_trial(engine, ask, prompt, text))
    return trials


def _trial(engine: LaneEngine, ask: Ask, prompt: int, text: str) -> Trial:
    requests = [ask(lane, f"compare-{next(_numbers)}", text) for lane in (0, 1)]
    tallies = [LaneTally(lane.draft_share) for lane in engine.lanes]
    for events, tally in zip(run_lanes(engine, requests), tallies, strict=True):
        for event in events:
            tally.add(event)
    comparison = Comparison(tallies[0], tallies[1], same_target=engine.configs[0].target == engine.configs[1].target)
    gap = None
    if comparison.same_target and not comparison.identical and all(request.sampling.greedy for request in requests):
        gap = gap_at_difference(engine, requests[0], comparison)
    return Trial(prompt, engine.order, comparison, gap)


def gap_at_difference(engine: LaneEngine, request: Request, comparison: Comparison) -> float | None:
    """Ask the left target once more, without drafts, how close its choice was where the texts part."""
    outbox = Outbox()
    submit_probe(engine, request, comparison, outbox)
    return top2_gap(_collect(outbox, 1)[0])


def submit_probe(engine: LaneEngine, request: Request, comparison: Comparison, outbox: Outbox) -> str:
    """Ask for one token behind what both texts share, with the target's two likeliest; returns the request's id."""
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
    )
    engine.submit(probe, outbox, 0, shared)
    return name


def run_lanes(engine: LaneEngine, requests: Sequence[Request]) -> list[list[Event]]:
    """One request in each lane; the events of each.

    Raises:
        EngineError: one failed.
    """
    outbox = Outbox()
    for lane, request in enumerate(requests):
        engine.submit(request, outbox, lane)
    return _collect(outbox, len(requests), [request.request_id for request in requests])


def _collect(outbox: Outbox, ends: int, names: Sequence[str] = ()) -> list[list[Event]]:
    found: dict[str, list[Event]] = {name: [] for name in names}
    while ends:
        event = outbox.get(_WAIT_S)
        request_id = getattr(event, "request_id", None)
        if event is None or request_id is None:
            continue
        found.setdefault(request_id, []).append(event)
        if isinstance(event, Finished):
            ends -= 1
            if event.reason is FinishReason.ERROR:
                raise EngineError(event.message)
    return list(found.values())


def _warm_up(engine: LaneEngine, ask: Ask) -> None:
    requests = [replace(ask(lane, f"warm-up-{lane}", WARM_UP), max_tokens=WARM_UP_TOKENS) for lane in (0, 1)]
    run_lanes(engine, requests)
