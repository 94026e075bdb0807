"""Speculation with a draft model that agrees at 0.8 of the tokens: τ, c, predicted and measured speedup."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from benchmarks.gpu_day.bench import ON_GPU, bench, cells, rounded
from benchmarks.gpu_day.section import Row

SHAPES = ("llama-3.1-8b/llama-3.2-1b", "llama-3.2-3b/llama-3.2-1b") if ON_GPU else ("tiny/tiny",)
GAMMAS = (2, 4, 6, "auto") if ON_GPU else (4,)
BATCHES = (1, 4, 16) if ON_GPU else (1,)
_FIGURES = (
    *("tokens_per_second", "mean_emitted_length", "cost_ratio", "pass_ratio"),
    *("predicted_speedup", "measured_speedup"),
)


def rows() -> Iterator[Row]:
    """A row per shape, batch size and γ."""
    # One by one, since the section may be stopped: with more slots there are more graphs.
    for batch, shape in product(BATCHES, SHAPES):
        sizes = {"batches": [batch], "limit": max(batch, 2), "max_tokens": 64 if ON_GPU else 12}
        gammas = list(map(str, GAMMAS))
        report = bench(
            synthetic=0.8, shape=shape, drafters=["model"], gammas=gammas, passes=2 if ON_GPU else 1, **sizes
        )
        for name, cell in cells(report):
            row: Row = {"what": name, **rounded(cell, *_FIGURES)}
            if cell["predicted_speedup"]:
                row["measured / predicted"] = cell["measured_speedup"] / cell["predicted_speedup"]
            yield row
