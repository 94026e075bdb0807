"""At which batch speculation stops paying.

One row leaves the arithmetic units idle while the weights are read, and verifying a draft uses them for nothing. Many
rows need them for their own tokens; from some batch on a draft costs more than it saves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.bench.cell import Cell
from engine.bench.plan import NONE, Variant
from engine.bench.prompts import PromptSet
from engine.bench.suite import Suite


@dataclass(frozen=True, slots=True)
class Crossover:
    """One variant on one set, batch by batch."""

    drafter: str
    gamma: str
    prompts: str
    temperature: float
    cells: tuple[Cell, ...]
    """Of the variant, the batch doubling."""
    plain_tokens_per_second: tuple[float, ...]
    """Of plain decoding, in the same batches."""
    batch: int | None
    """The first batch in which plain decoding was at least as fast; None where there was none."""


def find_crossover(suite: Suite, variants: Sequence[Variant], sets: Sequence[PromptSet], limit: int) -> list[Crossover]:
    """Double the batch until a draft no longer pays, for every variant, set and temperature.

    Args:
        limit: largest batch to try.
    """
    return [
        _grow(suite, variant, prompt_set, temperature, limit)
        for prompt_set in sets
        for temperature in suite.plan.temperatures
        for variant in variants
        if variant != NONE
    ]


def _grow(suite: Suite, variant: Variant, prompt_set: PromptSet, temperature: float, limit: int) -> Crossover:
    cells: list[Cell] = []
    plain: list[float] = []
    batch = 1
    while batch <= limit:
        plan = replace(suite.plan, batches=(batch,), temperatures=(temperature,))
        baseline, cell = replace(suite, plan=plan).run([NONE, variant], [prompt_set]).cells
        cells.append(cell)
        plain.append(baseline.tokens_per_second)
        if cell.measured_speedup <= 1:
            break
        batch *= 2
    return Crossover(
        drafter=variant.drafter,
        gamma=variant.gamma_text,
        prompts=prompt_set.name,
        temperature=temperature,
        cells=tuple(cells),
        plain_tokens_per_second=tuple(plain),
        batch=cells[-1].batch if cells[-1].measured_speedup <= 1 else None,
    )
