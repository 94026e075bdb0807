"""Draft steps of a draft model as CUDA graphs: the first step, and every further one, for each shape of a batch.

A graph hands tokens, distributions and the step under way to the next in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from specchat.engine.backends.cuda_graphs import GraphRunner
from specchat.engine.backends.region import Numbers, Region, Regions, Shape
from specchat.engine.decoding.tree_part import TreePart
from specchat.engine.request import MAX_GAMMA
from specchat.engine.sampling.sampling_rows import NUMBERS, SamplingFlags, coarse_flags, setting_numbers
from specchat.engine.sequence.sequence import SequenceState

Step = Callable[[Numbers, int, SamplingFlags], None]
"""A step for rows with these numbers, over so many columns of the cache; it leaves what it drafts in
`StepGraphs.tokens` and `StepGraphs.q`."""


class StepGraphs:
    """The graphs of one way of drafting, and what they read and write.

    Args:
        passes: of the draft model.
        vocabulary: V, of the target.
        places: N, tokens and distributions that there is room for in a row.
        integers: shapes of a row's numbers that the steps read, by name.
        first: the first step.
        further: any further one.
        most: graphs that are kept.
    """

    def __init__(
        self,
        passes: GraphRunner,
        vocabulary: int,
        places: int,
        integers: Mapping[str, Shape],
        first: Step,
        further: Step,
        most: int,
    ) -> None:
        self._passes = passes
        self._vocabulary = vocabulary
        self._places = places
        self._integers = {"riding": (), "slots": (), "mine": (), **integers}
        self._first, self._further = first, further
        self._regions = Regions(passes.pool, passes.cache.slots, most)
        self._numbers: dict[int, Numbers] = {}
        device = passes.pool.device
        self.tokens = torch.zeros(self._regions.rows, places, dtype=torch.long, device=device)
        """[slots, N], int64: drafted tokens."""
        self.at = torch.zeros(1, dtype=torch.long, device=device)
        """The step under way."""
        self.spare = passes.cache.columns - 1
        """The column of the cache where goes what is for nothing."""

    @property
    def bytes(self) -> int:
        """Memory of distributions."""
        return self._regions.bytes

    def q(self, rows: int) -> Tensor:
        """[rows, N, V], float32: what the tokens are drawn from."""
        shape, size = (rows, self._places, self._vocabulary), self._places * self._vocabulary
        return self._regions.shared("q", shape, self._regions.rows * size, torch.float32)

    @torch.inference_mode()
    def capture(self) -> None:
        """Capture the steps for all numbers of rows and columns."""
        for columns, rows in product(reversed(self._passes.column_counts), reversed(self._passes.row_counts)):
            for flags in coarse_flags(rows):
                self._graph(self._first, rows, columns, flags)
                self._graph(self._further, rows, columns, flags)

    @torch.inference_mode()
    def draft(
        self, rows: Sequence[SequenceState], steps: int, numbers: Mapping[str, ArrayLike], drafted: int, drawn: int
    ) -> tuple[Tensor, Tensor | None]:
        """Tokens [B, drafted] and, unless all rows are greedy, distributions [B, drawn, V].

        Args:
            rows: B.
            steps: at least 1.
            numbers: [B, …] by name: the inputs of the steps, and uniforms `u`.
            drafted: tokens that the steps make.
            drawn: distributions that they are drawn from.
        """
        sampling, seats = [row.request.sampling for row in rows], self._passes.seats([row.slot for row in rows])
        count, mine = seats.count, list(seats.mine)
        flags = SamplingFlags.of(sampling).strict.coarse(count)
        columns = self._passes.columns(max(len(row.tokens) for row in rows) + MAX_GAMMA)
        first, further = (self._graph(step, count, columns, flags) for step in (self._first, self._further))
        by_seat = {"riding": np.zeros(count), "slots": np.array(seats.slots), "mine": np.array(mine)}
        by_seat["riding"][mine] = 1
        for name, values in {"settings": setting_numbers(sampling), **numbers}.items():
            array = np.asarray(values)
            by_seat[name] = np.repeat(array[:1], count, axis=0)  # seats that do not ride have to have some
            by_seat[name][mine] = array
        first(by_seat, {})
        for _ in range(1, steps):
            further.run()
        made = [self.tokens[:count, :drafted]]
        if not flags.all_greedy:
            made.append(self.q(count)[:, :drawn])
        if seats.in_order:
            tokens, *q = (part[: len(rows)] for part in made)
        else:
            tokens, *q = (part[self._numbers[count]["mine"][: len(rows)]] for part in made)
        return tokens, q[0] if q else None

    def read(
        self, fed: Tensor, positions: Tensor, numbers: Numbers, columns: int, part: TreePart | None = None
    ) -> Tensor:
        """Logits [rows, T, V'] of the draft model after tokens [rows, T] that are written at these columns.

        Args:
            fed: the tokens.
            positions: [rows, T]; what rows write that do not ride goes to the spare column.
            numbers: of the rows.
            columns: that the pass attends over.
            part: what the tokens of a tree see; None for chains.
        """
        written = torch.where(numbers["riding"][:, None] > 0, positions, self.spare)
        return self._passes.step(fed, written, self._passes.view(numbers["slots"], columns, written), part)[0]

    def _graph(self, step: Step, rows: int, columns: int, flags: SamplingFlags) -> Region:
        return self._regions.of((step, rows, columns, flags), lambda: self._captured(step, rows, columns, flags))

    def _captured(self, step: Step, rows: int, columns: int, flags: SamplingFlags) -> Region:
        if rows not in self._numbers:
            integers = {name: (rows, *shape) for name, shape in self._integers.items()}
            reals = {"u": (rows, self._places), "settings": (rows, NUMBERS)}
            self._numbers[rows] = Numbers(self._passes.pool.device, integers, reals)
        numbers = self._numbers[rows]

        def run() -> list[Tensor]:
            step(numbers, columns, flags)
            return []

        self._passes.compile(run)
        return self._regions.region(numbers, {}, run)
