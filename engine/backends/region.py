"""Region: a function of tensors of fixed shape as one CUDA graph, with its inputs and results at fixed places."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from specchat.engine.backends.graph_pool import GraphPool

Shape = tuple[int, ...]


class Numbers:
    """Numbers from the host that a region reads, sent to the device by one copy.

    Args:
        device: where they are read.
        integers: shapes of int64 tensors, by name.
        reals: shapes of float64 tensors, by name.
    """

    def __init__(
        self, device: torch.device, integers: Mapping[str, Shape], reals: Mapping[str, Shape] | None = None
    ) -> None:
        reals = reals or {}
        total = sum(prod(shape) for shape in (*integers.values(), *reals.values()))
        self._all = np.zeros(total, dtype=np.int64)
        self._sent = torch.zeros(total, dtype=torch.long, device=device)
        self._host: dict[str, NDArray[Any]] = {}
        self._there: dict[str, Tensor] = {}
        end = 0
        for shapes, kind, dtype in ((integers, np.int64, torch.int64), (reals, np.float64, torch.float64)):
            for name, shape in shapes.items():
                begin, end = end, end + prod(shape)
                self._host[name] = self._all[begin:end].view(kind).reshape(shape)
                self._there[name] = self._sent[begin:end].view(dtype).view(shape)

    def __getitem__(self, name: str) -> Tensor:
        """The numbers on the device."""
        return self._there[name]

    def send(self, numbers: Mapping[str, ArrayLike]) -> None:
        """Put numbers [b, …] into the first rows; further rows get those of the first row, further columns keep theirs.

        The copy does not wait: from pageable memory it is staged before the call returns (CUDA runtime API, "API
        synchronization behavior").
        """
        for name, values in numbers.items():
            array, room = np.asarray(values), self._host[name]
            inner = tuple(slice(size) for size in array.shape[1:])
            room[(slice(len(array)), *inner)] = array
            if len(array) < len(room):
                room[(slice(len(array), None), *inner)] = array[:1]
        self._sent.copy_(torch.from_numpy(self._all), non_blocking=True)


@dataclass(frozen=True, slots=True)
class Region:
    """Where a region's inputs are put and its results lie."""

    numbers: Numbers
    inputs: Mapping[str, Tensor]
    results: tuple[Tensor, ...]
    run: Callable[[], None]

    @torch.inference_mode()
    def __call__(self, numbers: Mapping[str, ArrayLike], inputs: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """Results for these numbers (`Numbers.send`) and inputs, which may be smaller than the region's.

        They are there until the region runs again, or another that shares their places.
        """
        self.numbers.send(numbers)
        for name, given in inputs.items():
            self.inputs[name][tuple(slice(size) for size in given.shape)].copy_(given, non_blocking=True)
        self.run()
        return self.results


class Regions:
    """The regions of one kind of work, by shape; the least recently used is dropped where there are too many.

    Args:
        pool: makes the graphs.
        rows: the most of a region.
        most: regions kept.
    """

    def __init__(self, pool: GraphPool, rows: int, most: int) -> None:
        self.pool = pool
        self.rows = rows
        self.counts = [1 << i for i in range(rows.bit_length()) if 2 << i <= rows] + [rows]
        """Rows that regions have: powers of two up to half of the most, then the most."""
        self._most = most
        self._made: OrderedDict[Hashable, Region] = OrderedDict()
        self._shared: dict[str, Tensor] = {}

    def count(self, rows: int) -> int:
        """Rows of the region that so many fit into."""
        return next(count for count in self.counts if count >= rows)

    @property
    def keys(self) -> list[Hashable]:
        """What there are regions for."""
        return list(self._made)

    @property
    def bytes(self) -> int:
        """Memory of what regions share."""
        return sum(shared.nbytes for shared in self._shared.values())

    def shared(self, name: str, shape: Shape, most: int, dtype: torch.dtype) -> Tensor:
        """A tensor of this shape at a place that all regions share; `most` numbers fit there."""
        if name not in self._shared:
            self._shared[name] = torch.zeros(most, dtype=dtype, device=self.pool.device)
        return self._shared[name][: prod(shape)].view(shape)

    @torch.inference_mode()
    def of(self, key: Hashable, make: Callable[[], Region]) -> Region:
        """The region for a shape, made by `make` (with `region`) where there is none."""
        if key not in self._made:
            self._made[key] = make()
            if len(self._made) > self._most:
                self._made.popitem(last=False)
        self._made.move_to_end(key)
        return self._made[key]

    def region(
        self,
        numbers: Numbers,
        inputs: Mapping[str, Tensor],
        function: Callable[[], Sequence[Tensor]],
        results: Sequence[Tensor] | None = None,
    ) -> Region:
        """A region of a function that reads these numbers and inputs.

        It is run for trial with all of them as they are now, which must do no harm. What it returns is copied out of
        the memory of graphs, to `results` or to tensors made for it: other graphs write there.
        """
        places = tuple(results if results is not None else [torch.empty_like(made) for made in function()])

        def run() -> None:
            for place, made in zip(places, function(), strict=True):
                place.copy_(made)

        return Region(numbers, inputs, places, self.pool.graph(run))
