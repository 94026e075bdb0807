"""Crossover: the batch size from which plain decoding is at least as fast as speculation.

With one row the arithmetic units are idle while the weights are read, so verifying a draft is nearly free. With many
rows they are busy with the rows' own tokens, and from some batch size on a draft costs more than it saves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from specchat.engine.tools.bench.cell import Cell
from specchat.engine.tools.bench.plan import NONE, Variant
from specchat.engine.tools.bench.prompts import PromptSet
from specchat.engine.tools.bench.suite import Suite


@dataclass(frozen=True, slots=True)
class Crossover:
    """Speeds of one variant on one prompt set, per batch size."""

    drafter: str
    gamma: str
    prompts: str
    temperature: float
    cells: tuple[Cell, ...]
    """Cells of the variant, at batch sizes that double."""
    plain_tokens_per_second: tuple[float, ...]
    """Of plain decoding, at the same batch sizes."""
    batch: int | None
    """Smallest batch size at which plain decoding was at least as fast; None if there was none."""


def find_crossover(suite: Suite, variants: Sequence[Variant], sets: Sequence[PromptSet], limit: int) -> list[Crossover]:
    """Double the batch size until speculation is no longer faster, for every variant, prompt set and temperature.

    Args:
        limit: largest batch size to try.
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
