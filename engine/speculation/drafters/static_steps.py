"""Draft steps of a draft model in fixed shapes: the first step and every further one are a CUDA graph each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specchat.engine.request import MAX_GAMMA
from specchat.engine.runner.cuda_graphs import GraphRunner
from specchat.engine.runner.region import Numbers, Region, Regions
from specchat.engine.sampling.sampler import draw, most_likely, standardise
from specchat.engine.sampling.sampling_rows import NUMBERS, SamplingFlags, SamplingRows, coarse_flags, setting_numbers
from specchat.engine.sequence.sequence import SequenceState

_MOST = 512
"""Shapes that are kept."""


class StaticSteps:
    """The draft steps of a draft model on a GPU: a graph hands token, distribution and position to the next in memory.

    Args:
        passes: of the draft model.
        fit: logits of the draft model over the target's vocabulary.
        vocabulary: V, of the target.
        lead: tokens fed in the first step.
    """

    def __init__(self, passes: GraphRunner, fit: Callable[[Tensor], Tensor], vocabulary: int, lead: int) -> None:
        self._passes = passes
        self._fit = fit
        self._vocabulary = vocabulary
        self._lead = lead
        self._regions = Regions(passes.pool, passes.cache.slots, _MOST)
        self._numbers: dict[int, Numbers] = {}
        device = passes.pool.device
        self._tokens = torch.zeros(self._regions.rows, MAX_GAMMA, dtype=torch.long, device=device)
        self._at = torch.zeros(1, dtype=torch.long, device=device)
        """The step under way."""

    @property
    def bytes(self) -> int:
        """Memory of distributions."""
        return self._regions.bytes

    @torch.inference_mode()
    def capture(self) -> None:
        """Capture the steps for all numbers of rows and columns."""
        for columns, rows in product(reversed(self._passes.column_counts), reversed(self._passes.row_counts)):
            for flags in coarse_flags(rows):
                self._steps(rows, columns, flags)

    @torch.inference_mode()
    def draft(self, rows: Sequence[SequenceState], steps: int, u: NDArray[np.float64]) -> tuple[Tensor, Tensor | None]:
        """Tokens [B, steps] and, unless all rows are greedy, their distributions [B, steps, V].

        Args:
            rows: B, of which all but the last `lead` tokens are cached.
            steps: at least 1.
            u: [B, steps], uniforms.
        """
        sampling, seats = [row.request.sampling for row in rows], self._passes.seats([row.slot for row in rows])
        count, mine = seats.count, list(seats.mine)
        flags = SamplingFlags.of(sampling).strict.coarse(count)
        columns = self._passes.columns(max(len(row.tokens) for row in rows) + MAX_GAMMA)
        first, further = self._steps(count, columns, flags)
        by_seat = {
            "riding": np.zeros(count),
            "start": np.zeros(count),
            "fed": np.zeros((count, self._lead)),
            "slots": np.array(seats.slots),
            "mine": np.array(mine),
            "u": np.zeros((count, steps)),
            "settings": setting_numbers([sampling[0]] * count),
        }
        by_seat["riding"][mine] = 1
        by_seat["start"][mine] = [len(row.tokens) - self._lead for row in rows]
        by_seat["fed"][mine] = [row.tokens[-self._lead :] for row in rows]
        by_seat["u"][mine] = u
        by_seat["settings"][mine] = setting_numbers(sampling)
        first(by_seat, {})
        for _ in range(1, steps):
            further.run()
        made = [self._tokens[:count, :steps]]
        if not flags.all_greedy:
            made.append(self._q(count)[:, :steps])
        if seats.in_order:
            tokens, *q = (part[: len(rows)] for part in made)
        else:
            tokens, *q = (part[self._numbers[count]["mine"][: len(rows)]] for part in made)
        return tokens, q[0] if q else None

    def _steps(self, rows: int, columns: int, flags: SamplingFlags) -> tuple[Region, Region]:
        """The first step, and any further one."""
        shape = rows, columns, flags
        first = self._regions.of(("first", *shape), lambda: self._step("first", *shape))
        return first, self._regions.of(("further", *shape), lambda: self._step("further", *shape))

    def _step(self, kind: str, rows: int, columns: int, flags: SamplingFlags) -> Region:
        device = self._passes.pool.device
        if rows not in self._numbers:
            integers = {**dict.fromkeys(("riding", "start", "slots", "mine"), (rows,)), "fed": (rows, self._lead)}
            self._numbers[rows] = Numbers(device, integers, {"u": (rows, MAX_GAMMA), "settings": (rows, NUMBERS)})
        numbers, tokens, at, spare = self._numbers[rows], self._tokens[:rows], self._at, self._passes.cache.columns - 1
        width = self._lead if kind == "first" else 1
        q = None if flags.all_greedy else self._q(rows)

        def run() -> list[Tensor]:
            if kind == "first":
                at.zero_()
                fed, start = numbers["fed"], numbers["start"]
            else:
                at.add_(1).clamp_(max=MAX_GAMMA - 1)
                fed, start = tokens.gather(1, (at - 1).expand(rows, 1)), numbers["start"] + self._lead - 1 + at
            riding = numbers["riding"][:, None] > 0
            positions = torch.where(riding, start[:, None] + torch.arange(width, device=device), spare)
            view = self._passes.view(numbers["slots"], columns, positions)
            logits = self._fit(self._passes.step(fed, positions, view, None)[0][:, -1:])
            if q is None:
                token = most_likely(logits)
            else:
                drawn_from = standardise(logits, SamplingRows.from_numbers(numbers["settings"], flags))
                q.index_copy_(1, at, drawn_from)
                token = draw(drawn_from[:, 0], numbers["u"].gather(1, at.expand(rows, 1))[:, 0])[:, None]
            tokens.scatter_(1, at.expand(rows, 1), token)
            return []

        self._passes.compile(run)
        return self._regions.region(numbers, {}, run)

    def _q(self, rows: int) -> Tensor:
        size = MAX_GAMMA * self._vocabulary
        return self._regions.shared("q", (rows, MAX_GAMMA, self._vocabulary), self._regions.rows * size, torch.float32)
