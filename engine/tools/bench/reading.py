"""How fast a long prompt is read, by the engine and by its peers."""

from __future__ import annotations

import random
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from specchat.engine.engine import Engine
from specchat.engine.errors import EngineError
from specchat.engine.events import Admitted, Event, Prefilled
from specchat.engine.request import Sampling
from specchat.engine.tools.bench.pace import Pace, Peer
from specchat.engine.tools.bench.plan import BASELINE, NONE, Plan, Variant
from specchat.engine.tools.bench.prompts import Prompt
from specchat.engine.tools.bench.runner import run_pass
from specchat.engine.tools.bench.suite import Say


@dataclass(frozen=True, slots=True)
class ReadingCell:
    """Speed of reading a prompt; medians over the passes."""

    name: str
    """Drafter, which reads along, or peer."""
    prompt_tokens: int
    tokens_per_second: float
    measured_speedup: float
    """Time of the engine without drafter / time, pass by pass."""


def measure_reading(
    engine: Engine, plan: Plan, variants: Sequence[Variant], peers: Sequence[Peer], length: int, known: Sequence[int],
    say: Say,
) -> tuple[ReadingCell, ...]:  # fmt: skip
    """Read a prompt of random tokens with every drafter and peer in turn, a new prompt each time.

    The last token of a prompt does not count: the first pass of the reply reads it.

    Args:
        length: tokens of the prompt.
        known: token ids to draw from.

    Raises:
        EngineError: a request failed.
    """
    drafters = list(dict.fromkeys(variant.drafter for variant in variants))
    plain_peers = [peer for peer in peers if not peer.gamma]
    draws = random.Random(plan.seed)
    paces: dict[str, list[Pace]] = defaultdict(list)
    for number in range(-1, plan.passes):  # the first is a warm-up
        say(f"prompt of {length} tokens: {'warming up' if number < 0 else f'{number + 1}/{plan.passes}'}")
        taken: dict[str, Pace] = {}
        turn = number % len(drafters)
        for name in (*drafters[turn:], *drafters[:turn]):
            variant = NONE if name == BASELINE else Variant(name, 1)
            prompt = Prompt(ids=tuple(draws.choices(known, k=length)))
            (events,) = run_pass(engine, variant, [prompt], 1, Sampling(temperature=0), 1)
            taken[name] = reading_pace(events)
        for peer in plain_peers:
            seconds = peer.read(draws.choices(known, k=length))
            if seconds is not None:
                taken[peer.name] = Pace(length - 1, seconds)
        if number >= 0:
            for name, pace in taken.items():
                paces[name].append(pace)
    return tuple(_cell(name, length, taken, paces[BASELINE]) for name, taken in paces.items())


def reading_pace(events: Iterable[Event]) -> Pace:
    """Tokens of the prompt that were read and not re-used, and the seconds that took.

    Raises:
        EngineError: nothing was read.
    """
    reused, done, seconds = 0, 0, 0.0
    for event in events:
        if isinstance(event, Admitted):
            reused = event.reused_tokens
        elif isinstance(event, Prefilled):
            done, seconds = event.done, seconds + event.seconds
    if done <= reused:
        raise EngineError("a prompt of this length is not read in a pass of its own: give a longer one")
    return Pace(done - reused, seconds)


def _cell(name: str, length: int, paces: Sequence[Pace], baseline: Sequence[Pace]) -> ReadingCell:
    return ReadingCell(
        name,
        length,
        statistics.median(pace.tokens / pace.seconds for pace in paces),
        statistics.median(
            (plain.seconds / plain.tokens) / (pace.seconds / pace.tokens)
            for pace, plain in zip(paces, baseline, strict=True)
        ),
    )
