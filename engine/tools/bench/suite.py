"""Measurements of a benchmark: decoding speed, the crossover batch size, and how fast a prompt is read.

Variants and peers alternate within each pass, so that a slow minute of the machine affects all of them.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product

from specchat.engine.engine import Engine
from specchat.engine.errors import check
from specchat.engine.events import Admitted, Event, Prefilled
from specchat.engine.request import check_gamma
from specchat.engine.settings import Sampling
from specchat.engine.tools.bench.figures import Cell, Pace, PeerCell, Place, Tally, Traffic, tally
from specchat.engine.tools.bench.peers import Peer
from specchat.engine.tools.prompts import Prompt, PromptSet
from specchat.engine.tools.runner import BASELINE, NONE, Say, Variant, require_least, rotated, run_pass

_WARM_UP_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Plan:
    """The cells to measure, and the length of each measurement.

    Raises:
        EngineError: a value is out of range.
    """

    gammas: tuple[int | None, ...] = (4,)
    batches: tuple[int, ...] = (1,)
    temperatures: tuple[float, ...] = (0.0,)
    max_tokens: int = 96
    """Most tokens per reply."""
    passes: int = 3
    """Times each variant runs all prompts; times are medians over the passes."""
    seed: int = 1

    def __post_init__(self) -> None:
        for gamma in self.gammas:
            check_gamma(gamma)
        require_least(batch=(min(self.batches), 1), passes=(self.passes, 1))
        for temperature in self.temperatures:
            Sampling(temperature=temperature)  # raises EngineError if out of range
        check(self.max_tokens >= 2, f"max-tokens is {self.max_tokens}: a timed reply needs at least 2")


@dataclass(frozen=True, slots=True)
class Suite:
    """Measures the cells of a plan with one engine."""

    engine: Engine
    plan: Plan
    traffic: Traffic
    bandwidth: float
    """Copy bandwidth of the device in bytes per second."""
    say: Say

    def run(
        self, variants: Sequence[Variant], sets: Sequence[PromptSet], peers: Sequence[Peer] = ()
    ) -> tuple[list[Cell], list[PeerCell]]:
        """Measure every variant and peer on every prompt set, batch size and temperature.

        Args:
            variants: must include plain decoding.

        Raises:
            EngineError: a request failed.
        """
        cells: list[Cell] = []
        peer_cells: list[PeerCell] = []
        for prompt_set, batch, temperature in product(sets, self.plan.batches, self.plan.temperatures):
            place = Place(prompt_set.name, batch, temperature)
            able = [peer for peer in peers if peer.refusal(batch) is None]
            ours, theirs = self._passes(place, prompt_set.waves(batch), variants, able)
            for variant, passes in ours.items():
                cells.append(Cell(place, variant, passes, ours[NONE], self.traffic, self.bandwidth))
            for peer, paces in theirs.items():
                if any(pace.tokens and pace.seconds for pace in paces):
                    peer_cells.append(PeerCell(place, peer.name, peer.gamma, paces, ours))
        return cells, peer_cells

    def _passes(
        self, place: Place, prompts: Sequence[Prompt], variants: Sequence[Variant], peers: Sequence[Peer]
    ) -> tuple[dict[Variant, list[Tally]], dict[Peer, list[Pace]]]:
        ours: dict[Variant, list[Tally]] = {variant: [] for variant in variants}
        theirs: dict[Peer, list[Pace]] = {peer: [] for peer in peers}
        whole = self.plan.max_tokens
        first, brief = prompts[: place.batch], min(_WARM_UP_TOKENS, whole)
        if self.engine.ready is not None and self.engine.ready.device == "cuda":
            # Each text length has its own CUDA graph: capture them all before anything is timed.
            first, brief = prompts, whole
        sampling = Sampling(temperature=place.temperature)  # without a seed, as in a chat: with one, no draft is drawn
        self.say(f"{place}: warming up")
        for variant in variants:
            measure(self.engine, variant, first, place.batch, sampling, brief)
        for peer in peers:
            peer.run(first, place.batch, place.temperature, brief)
        for number in range(self.plan.passes):
            self.say(f"{place}: {number + 1}/{self.plan.passes}")
            for variant in rotated(variants, number):
                ours[variant].append(measure(self.engine, variant, prompts, place.batch, sampling, whole))
            for peer in peers:
                theirs[peer].append(peer.run(prompts, place.batch, place.temperature, whole))
        return ours, theirs


def measure(
    engine: Engine, variant: Variant, prompts: Sequence[Prompt], batch: int, sampling: Sampling, max_tokens: int
) -> Tally:
    """Run `run_pass` and return its `Tally`."""
    passed = run_pass(engine, variant, prompts, batch, sampling, max_tokens)
    return tally(chain.from_iterable(passed), batch)


class Crossover:
    """Speeds of one variant on one prompt set, per batch size.

    With one row the arithmetic units are idle while the weights are read, so verifying a draft is nearly free. With
    many rows they are busy with the rows' own tokens, and from some batch size on a draft costs more than it saves.

    Args:
        variant: a drafter.
        prompts: name of the prompt set.
        temperature: of the sampling.
    """

    def __init__(self, variant: Variant, prompts: str, temperature: float) -> None:
        self.drafter, self.gamma = variant.drafter, variant.gamma_text
        self.prompts, self.temperature = prompts, temperature
        self.cells: list[Cell] = []
        """Cells of the variant, at batch sizes that double."""
        self.plain_tokens_per_second: list[float] = []
        """Speed of plain decoding at the same batch sizes."""
        self.batch: int | None = None
        """Smallest batch size at which plain decoding was at least as fast; None if there was no such size."""


def find_crossover(suite: Suite, variants: Sequence[Variant], sets: Sequence[PromptSet], limit: int) -> list[Crossover]:
    """Double the batch size until speculation is no longer faster, for every variant, prompt set and temperature.

    Args:
        limit: largest batch size to try.
    """
    found = []
    for prompt_set, temperature, variant in product(sets, suite.plan.temperatures, variants):
        if variant == NONE:
            continue
        crossover, batch = Crossover(variant, prompt_set.name, temperature), 1
        while batch <= limit and crossover.batch is None:
            plan = replace(suite.plan, batches=(batch,), temperatures=(temperature,))
            (baseline, cell), _ = replace(suite, plan=plan).run([NONE, variant], [prompt_set])
            crossover.cells.append(cell)
            crossover.plain_tokens_per_second.append(baseline.tokens_per_second)
            if cell.measured_speedup <= 1:
                crossover.batch = batch
            batch *= 2
        found.append(crossover)
    return found


class ReadingCell:
    """Speed of reading a prompt; medians over the passes.

    Args:
        name: drafter, which reads the prompt too, or peer.
        length: tokens of the prompt.
        taken: its passes.
        plain: passes of the engine without drafter.
    """

    def __init__(self, name: str, length: int, taken: Sequence[Pace], plain: Sequence[Pace]) -> None:
        self.name, self.prompt_tokens = name, length
        self.tokens_per_second = statistics.median(1 / pace.token_s for pace in taken)
        self.measured_speedup = statistics.median(a.token_s / b.token_s for a, b in zip(plain, taken, strict=True))


def measure_reading(
    suite: Suite, variants: Sequence[Variant], peers: Sequence[Peer], length: int, known: Sequence[int]
) -> tuple[ReadingCell, ...]:
    """Read a prompt of random tokens with every drafter and peer in turn, a new prompt each time.

    The last token of a prompt does not count: the first pass of the reply reads it.

    Args:
        length: tokens of the prompt.
        known: token ids to draw from.

    Raises:
        EngineError: a request failed.
    """
    drafters = list(dict.fromkeys(variant.drafter for variant in variants))
    draws = random.Random(suite.plan.seed)
    paces: dict[str, list[Pace]] = {name: [] for name in drafters}
    for number in range(-1, suite.plan.passes):  # the first pass is a warm-up
        progress = "warming up" if number < 0 else f"{number + 1}/{suite.plan.passes}"
        suite.say(f"prompt of {length} tokens: {progress}")
        for name in rotated(drafters, number):
            variant = NONE if name == BASELINE else Variant(name, 1)
            prompt = Prompt(ids=tuple(draws.choices(known, k=length)))
            (events,) = run_pass(suite.engine, variant, [prompt], 1, Sampling(temperature=0), 1)
            paces[name].append(reading_pace(events))
        for peer in (peer for peer in peers if not peer.gamma):
            if (seconds := peer.read(draws.choices(known, k=length))) is not None:
                paces.setdefault(peer.name, []).append(Pace(length - 1, seconds))
    return tuple(ReadingCell(name, length, taken[1:], paces[BASELINE][1:]) for name, taken in paces.items())


def reading_pace(events: Iterable[Event]) -> Pace:
    """Tokens of the prompt that were read and not reused, and the seconds that took.

    Raises:
        EngineError: nothing was read.
    """
    events = list(events)
    reused = sum(event.reused_tokens for event in events if isinstance(event, Admitted))
    chunks = [event for event in events if isinstance(event, Prefilled)]
    done = max((chunk.done for chunk in chunks), default=0)
    check(done > reused, "a prompt of this length is not read in a separate pass: give a longer one")
    return Pace(done - reused, sum(chunk.seconds for chunk in chunks))
