"""CUDA graphs: functions of tensors with fixed shapes, captured once and replayed; eager where they cannot be captured.

Launching a small model's kernels one by one costs more than running them. A captured function reads its inputs from
static tensors, so callers pass a signature with their sizes; without capture the function is called with
the inputs as they are, and one function serves both. What is likely to be called is planned, and captured one graph at
a time; no capture changes what a running text has.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from math import inf, prod
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from specchat.engine.device.device import is_shortage, to_device
from specchat.engine.errors import first_line

Shape = tuple[int, ...]
Inputs = Mapping[str, Tensor]
Function = Callable[[Inputs], Sequence[Tensor]]


@dataclass(frozen=True, slots=True)
class Signature:
    """Static inputs and results of a captured function."""

    integers: Mapping[str, Shape] = field(default_factory=dict)
    """int64 numbers from the host, by name; the first dimension is the rows."""
    reals: Mapping[str, Shape] = field(default_factory=dict)
    """float64 numbers from the host."""
    tensors: Mapping[str, tuple[Shape, torch.dtype]] = field(default_factory=dict)
    """Tensors of the device, copied to the static input before a replay."""
    shared: Mapping[str, int] = field(default_factory=dict)
    """Names of tensors, and of results as "result 0", …, that all functions of a `Graphs` keep at one place; how many
    times the elements of this function's the largest has."""
    initial: Mapping[str, Any] = field(default_factory=dict)
    """Inputs of a capture, which must not change what a running text has; 0 where not given."""


Step = tuple[Hashable, Function, Callable[[], Signature]]
"""Key, function and signature of what may be captured."""


class Graphs:
    """The captured functions of one kind of work, by key; the least recently used is dropped where there are too many.

    Args:
        device: of all tensors.
        rows: the most rows of a function.
        pool: captures graphs; None to run all functions eagerly with the inputs as they are.
        most: functions kept.
    """

    def __init__(self, device: torch.device, rows: int, pool: GraphPool | None, most: int = 256) -> None:
        self.device = device
        self.pool = pool
        self.counts = [1 << i for i in range(rows.bit_length()) if 2 << i <= rows] + [rows]
        """Row counts of captured functions: powers of two up to half of the most, then the most."""
        self._most = most
        self._static: OrderedDict[Hashable, _Static] = OrderedDict()
        self._shared: dict[str, Tensor] = {}

    @property
    def enabled(self) -> bool:
        """Whether functions have static shapes."""
        return self.pool is not None

    @property
    def keys(self) -> list[Hashable]:
        """Keys of the captured functions."""
        return [key for key, static in self._static.items() if static.run]

    @property
    def bytes(self) -> int:
        """Memory of shared inputs and results."""
        return sum(shared.nbytes for shared in self._shared.values())

    def count(self, rows: int) -> int:
        """Rows of the function that serves for a batch of `rows`; all of them where functions run eagerly."""
        return rows if self.pool is None else next(count for count in self.counts if count >= rows)

    @torch.inference_mode()
    def call(
        self,
        key: Hashable,
        function: Function,
        signature: Callable[[], Signature],
        numbers: Mapping[str, ArrayLike],
        tensors: Inputs | None = None,
    ) -> tuple[Tensor, ...]:
        """Results of the function for these numbers from the host and tensors of the device.

        With static shapes, inputs may be smaller than their static tensors: missing rows of numbers repeat the first
        row, other missing elements keep earlier values. Results then have all static rows, and are valid until the
        next call of a function that shares their memory, or a capture.

        Args:
            key: identifies the function and its static shapes.
            function: maps inputs by name to tensors.
            signature: its static inputs; called when it is captured.
            numbers: by name, copied to the device without waiting.
            tensors: by name.
        """
        if self.pool is None:
            inputs = {name: to_device(np.asarray(values), self.device) for name, values in numbers.items()}
            return tuple(function({**inputs, **(tensors or {})}))
        if not self.pool.defers:
            self.capture(key, function, signature)
        static = self._static_of(key, function, signature)
        if static.run is None:
            self.plan(NEEDED, key, function, signature)
        return static.call(numbers, tensors or {})

    def plan(self, rank: int, key: Hashable, function: Function, signature: Callable[[], Signature]) -> None:
        """Have a function captured in the order of ranks, unless it is captured."""
        static = self._static.get(key)
        if self.pool is not None and (static is None or static.run is None):
            self.pool.plan((self, key), rank, partial(self.capture, key, function, signature))

    @torch.inference_mode()
    def capture(self, key: Hashable, function: Function, signature: Callable[[], Signature]) -> Sequence[Tensor]:
        """Capture a function unless it is captured; returns its static results."""
        static = self._static_of(key, function, signature)
        if static.run is None:
            assert self.pool is not None
            static.numbers.reset()
            places = static.results = tuple(
                self._place(f"result {i}", tuple(made.shape), made.dtype, static.shared)
                for i, made in enumerate(function(static.inputs))
            )

            def run() -> None:
                # Copied out of the graphs' memory, which other graphs overwrite.
                for place, made in zip(places, function(static.inputs), strict=True):
                    place.copy_(made)

            static.run = self.pool.graph(run)
        return static.results

    def _static_of(self, key: Hashable, function: Function, signature: Callable[[], Signature]) -> _Static:
        if key not in self._static:
            self._static[key] = self._make(function, signature())
            if len(self._static) > self._most:
                self._static.popitem(last=False)
        self._static.move_to_end(key)
        return self._static[key]

    def _make(self, function: Function, signature: Signature) -> _Static:
        tensors = {
            name: self._place(name, shape, dtype, signature.shared)
            for name, (shape, dtype) in signature.tensors.items()
        }
        for name in tensors:
            if name in signature.initial:
                tensors[name].copy_(signature.initial[name])
        return _Static(function, _Numbers(self.device, signature), tensors, signature.shared)

    def _place(self, name: str, shape: Shape, dtype: torch.dtype, shared: Mapping[str, int]) -> Tensor:
        if name not in shared:
            return torch.zeros(shape, dtype=dtype, device=self.device)
        size = prod(shape)
        if name not in self._shared:
            self._shared[name] = torch.zeros(size * shared[name], dtype=dtype, device=self.device)
        return self._shared[name][:size].view(shape)


@dataclass(slots=True)
class _Static:
    """A function with its static inputs, and results once it is captured."""

    function: Function
    numbers: _Numbers
    tensors: Inputs
    shared: Mapping[str, int]
    results: tuple[Tensor, ...] = ()
    run: Callable[[], None] | None = None
    """Replays the graph; None before the capture."""

    @property
    def inputs(self) -> Inputs:
        """All static inputs by name."""
        return {**self.numbers.sent, **self.tensors}

    def call(self, numbers: Mapping[str, ArrayLike], tensors: Inputs) -> tuple[Tensor, ...]:
        """Copy the inputs to their places and run."""
        self.numbers.send(numbers)
        for name, given in tensors.items():
            self.tensors[name][tuple(slice(size) for size in given.shape)].copy_(given, non_blocking=True)
        if self.run is None:
            return tuple(self.function(self.inputs))
        self.run()
        return self.results


class _Numbers:
    """Static inputs that come from the host, all sent by one copy.

    Args:
        device: of the inputs.
        signature: their names and shapes.
    """

    def __init__(self, device: torch.device, signature: Signature) -> None:
        total = sum(prod(shape) for shape in (*signature.integers.values(), *signature.reals.values()))
        self._all = np.zeros(total, dtype=np.int64)
        self._device = torch.zeros(total, dtype=torch.long, device=device)
        self._initial = signature.initial
        self._host: dict[str, NDArray[Any]] = {}
        self.sent: dict[str, Tensor] = {}
        end = 0
        for shapes, kind, dtype in (
            (signature.integers, np.int64, torch.int64),
            (signature.reals, np.float64, torch.float64),
        ):
            for name, shape in shapes.items():
                begin, end = end, end + prod(shape)
                self._host[name] = self._all[begin:end].view(kind).reshape(shape)
                self.sent[name] = self._device[begin:end].view(dtype).view(shape)

    def reset(self) -> None:
        """Send the inputs of a capture."""
        self._all.fill(0)
        self.send({name: self._initial[name] for name in self.sent if name in self._initial})

    def send(self, numbers: Mapping[str, ArrayLike]) -> None:
        """Copy numbers [b, …] to the first rows; further rows get the numbers of the first row.

        The copy does not wait: from pageable memory it is staged before the call returns (CUDA runtime API, "API
        synchronization behavior").
        """
        for name, values in numbers.items():
            array, room = np.asarray(values), self._host[name]
            inner = tuple(slice(size) for size in array.shape[1:])
            room[(slice(len(array)), *inner)] = array
            if len(array) < len(room):
                room[(slice(len(array), None), *inner)] = array[:1]
        self._device.copy_(torch.from_numpy(self._all), non_blocking=True)


T = TypeVar("T")
_CAPTURE = threading.Lock()
"""Held by the thread that captures: a process captures one graph at a time (an engine closes while the next loads)."""

NEEDED, FIRST, LATER = range(3)
"""Ranks of planned captures: a call lacked it; one chat needs it; this and more, the less likely to be needed."""


class GraphPool:
    """CUDA graphs of one device, which share their memory.

    Args:
        device: where they run.
        capture: whether functions become graphs; if not, they run eagerly with static shapes (to test these without a
            GPU).
    """

    def __init__(self, device: torch.device, *, capture: bool) -> None:
        self.device = device
        self.not_captured: str | None = None
        """Why some function runs eagerly although capture was requested; None if all are captured."""
        self.count = 0
        """Graphs captured so far."""
        self.defers = False
        """Whether functions that are called before they are captured run eagerly; else they are captured at once."""
        self.planned: dict[Hashable, tuple[int, Callable[[], object]]] = {}
        """Rank and capture of what is to be captured."""
        self._full = False
        self._capture = capture
        self._pool = torch.cuda.graph_pool_handle() if capture else None

    @property
    def next_rank(self) -> float:
        """The lowest rank that is planned; infinite if nothing is."""
        return min((rank for rank, _ in self.planned.values()), default=inf)

    def plan(self, key: Hashable, rank: int, capture: Callable[[], object]) -> None:
        """Plan a capture, to be done by `capture_next`; of one rank the first that was planned comes first."""
        if not self._full:
            self.planned[key] = rank, capture

    def capture_next(self) -> None:
        """Do the planned capture of the lowest rank.

        Raises:
            torch.OutOfMemoryError: there is not enough memory for it.
        """
        self.planned.pop(min(self.planned, key=lambda key: self.planned[key][0]))[1]()

    def give_up(self, reason: str) -> None:
        """Capture nothing more, for lack of memory."""
        self.not_captured, self._full = reason, True
        self.planned.clear()

    def graph(self, run: Callable[[], T]) -> Callable[[], T]:
        """`run` as a CUDA graph, or `run` itself where it cannot be captured.

        Results are in memory that all graphs share: they are valid until another graph runs. Only an error of the
        capture itself leads to the fallback. Errors of the function are raised, and so is a shortage of memory.

        Raises:
            torch.OutOfMemoryError: there is not enough memory for the graph.
        """
        if not self._capture:
            return run
        with _CAPTURE:
            warm(run, self.device)
            try:
                replay = capture(run, self.device, self._pool)
            except RuntimeError as error:
                self._replace_pool()
                # An error inside a capture makes the end of the capture fail too: the first error is the reason.
                reasons = list(_causes(error))
                if any(map(is_shortage, reasons)):
                    raise torch.OutOfMemoryError(first_line(reasons[-1])) from error
                self.not_captured = first_line(reasons[-1])
                return run
        self.count += 1
        return replay

    def _replace_pool(self) -> None:
        """Take a new memory pool. A failed capture leaves the old one open for allocation (pytorch#180395)."""
        with suppress(RuntimeError, AttributeError):  # it was closed already, or torch is built without CUDA
            index, pool = torch.cuda.current_device(), cast(tuple[int, int], self._pool)
            torch._C._cuda_endAllocateToPool(index, pool)
            torch._C._cuda_releasePool(index, pool)
        self._pool = torch.cuda.graph_pool_handle()


def warm(run: Callable[[], object], device: torch.device) -> None:
    """Call twice outside of a graph, so that libraries initialise themselves."""
    stream = _stream(device)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(stream)


def capture(run: Callable[[], T], device: torch.device, pool: Any) -> Callable[[], T]:
    """Capture a function as a CUDA graph in a memory pool; returns its replay."""
    graph, before = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    try:
        # thread_local: other threads may allocate during the capture.
        with torch.cuda.graph(graph, pool=pool, stream=_stream(device), capture_error_mode="thread_local"):
            made = run()
    finally:
        torch.cuda.set_stream(before)  # a capture that fails leaves its own

    def replay() -> T:
        graph.replay()
        return made

    return replay


@lru_cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """Stream of warm-ups and captures. One for all, since each stream gets its own workspace of cuBLAS."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error and its causes, the first cause last."""
    reason: BaseException | None = error
    while reason is not None:
        yield reason
        reason = reason.__cause__ or reason.__context__
