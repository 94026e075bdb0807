"""Runs the cells of a benchmark: variants alternate within each pass, so that a slow minute affects them all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specchat.engine.engine import Engine
from specchat.engine.request import Sampling
from specchat.engine.tools.bench.cell import Cell, Place, make_cell
from specchat.engine.tools.bench.pace import Pace, Peer, PeerCell, make_peer_cell
from specchat.engine.tools.bench.plan import NONE, Plan, Variant
from specchat.engine.tools.bench.prompts import Prompt, PromptSet
from specchat.engine.tools.bench.roofline import Traffic
from specchat.engine.tools.bench.runner import measure
from specchat.engine.tools.bench.tally import Tally

Say = Callable[[str], None]
"""Called with one-line progress messages."""
_WARM_UP_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Results:
    """Cells of a plan, in the order of the table."""

    cells: tuple[Cell, ...]
    peers: tuple[PeerCell, ...]


@dataclass(frozen=True, slots=True)
class Suite:
    """Measures the cells of a plan with one engine."""

    engine: Engine
    plan: Plan
    traffic: Traffic
    bandwidth: float
    """Copy bandwidth of the device in bytes per second."""
    say: Say

    def run(self, variants: Sequence[Variant], sets: Sequence[PromptSet], peers: Sequence[Peer] = ()) -> Results:
        """Measure every variant and peer on every prompt set, batch size and temperature.

        Args:
            variants: must include plain decoding.

        Raises:
            EngineError: a request failed.
        """
        cells: list[Cell] = []
        peer_cells: list[PeerCell] = []
        for prompt_set in sets:
            for batch in self.plan.batches:
                for temperature in self.plan.temperatures:
                    place = Place(prompt_set.name, batch, temperature)
                    able = [peer for peer in peers if peer.refusal(batch) is None]
                    ours, theirs = self._passes(place, prompt_set.waves(batch), variants, able)
                    cells += [self._cell(place, variant, ours) for variant in variants]
                    made = [make_peer_cell(place, peer, theirs[peer], ours) for peer in able]
                    peer_cells += [cell for cell in made if cell is not None]
        return Results(tuple(cells), tuple(peer_cells))

    def _cell(self, place: Place, variant: Variant, ours: dict[Variant, list[Tally]]) -> Cell:
        return make_cell(place, variant, ours[variant], ours[NONE], self.traffic, self.bandwidth)

    def _passes(
        self, place: Place, prompts: Sequence[Prompt], variants: Sequence[Variant], peers: Sequence[Peer]
    ) -> tuple[dict[Variant, list[Tally]], dict[Peer, list[Pace]]]:
        batch, temperature = place.batch, place.temperature
        ours: dict[Variant, list[Tally]] = defaultdict(list)
        theirs: dict[Peer, list[Pace]] = defaultdict(list)
        self.say(f"{place.prompts}, batch {batch}, temperature {temperature:g}: warming up")
        first, brief = self._warm_up(prompts, batch)
        for variant in variants:
            measure(self.engine, variant, first, batch, self._sampling(variant, temperature), brief)
        for peer in peers:
            peer.run(first, batch, temperature, brief)
        for number in range(self.plan.passes):
            self.say(f"{place.prompts}, batch {batch}, temperature {temperature:g}: {number + 1}/{self.plan.passes}")
            start = number % len(variants)
            for variant in (*variants[start:], *variants[:start]):
                sampling = self._sampling(variant, temperature)
                ours[variant].append(
                    measure(self.engine, variant, prompts, batch, sampling, self.plan.max_tokens),
                )
            for peer in peers:
                theirs[peer].append(peer.run(prompts, batch, temperature, self.plan.max_tokens))
        return ours, theirs

    def _sampling(self, variant: Variant, temperature: float) -> Sampling:
        """Seeded, so that a run repeats; where γ is to adapt as in a chat, not: with a seed it is fixed."""
        adapts = variant.gamma is None and variant != NONE
        return Sampling(temperature=temperature, seed=None if adapts else self.plan.seed)

    def _warm_up(self, prompts: Sequence[Prompt], batch: int) -> tuple[Sequence[Prompt], int]:
        """Prompts and reply length of the warm-up, which is not timed."""
        ready = self.engine.ready
        if ready is not None and ready.device == "cuda":
            # Each text length has its own CUDA graph: capture them all before anything is timed.
            return prompts, self.plan.max_tokens
        return prompts[:batch], min(_WARM_UP_TOKENS, self.plan.max_tokens)
