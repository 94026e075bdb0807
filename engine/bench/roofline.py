"""What the memory allows: bytes that a round has to read, against the speed at which the device copies bytes.

One token at a time, decoding is bound by reading the weights. A device that reads as fast as it copies can therefore
emit at most bandwidth / bytes per token, and the share of the bandwidth that is reached says how good a loop is.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

import torch

from engine.assembly import Assembly
from engine.bench.tally import Tally
from engine.device import available_memory
from engine.loading import LoadedModel
from engine.stopwatch import Stopwatch

_COPIED = {"cpu": 256 << 20, "cuda": 1 << 30}
"""Bytes of the copied block: far more than any cache holds."""
_REPEATS = 10


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that passes have to read, by arithmetic and not by measurement."""

    weights: int
    """Of one target pass."""
    cache: int
    """Of the target's cache, per token in it."""
    draft_weights: int
    """Of one step of the draft model or head; 0 where there is none."""
    draft_cache: int

    @classmethod
    def of(cls, assembly: Assembly) -> Traffic:
        """The traffic of loaded models."""
        cache = assembly.target.cache
        room = cache.slots * cache.columns
        return cls(
            weights=weights_read(assembly.model),
            cache=cache.bytes // room,
            draft_weights=_draft_weights(assembly),
            draft_cache=(assembly.cache_bytes - cache.bytes) // room,
        )

    def per_token(self, counted: Tally, drafter: str) -> float | None:
        """Bytes read for each token emitted; None where nothing was."""
        if not counted.tokens:
            return None
        read = counted.rounds * self.weights + counted.positions * self.cache
        if drafter in ("model", "head", "combined"):
            read += counted.steps * self.draft_weights + counted.draft_positions * self.draft_cache
        return read / counted.tokens


def _draft_weights(assembly: Assembly) -> int:
    if assembly.head is not None:
        scored = len(assembly.head.vocabulary) * assembly.head.head.shape.hidden
        return assembly.head.weight_bytes + scored * assembly.model.model.dtype.itemsize
    return weights_read(assembly.draft) if assembly.draft else 0


def weights_read(loaded: LoadedModel) -> int:
    """Bytes of weights that one pass reads: all but an embedding table that only lends a few rows."""
    network: Any = loaded.model
    embedding, head = network.get_input_embeddings(), network.get_output_embeddings()
    if head is not None and embedding.weight is head.weight:
        return loaded.weight_bytes
    return loaded.weight_bytes - int(embedding.weight.nbytes)


def copy_bandwidth(device: torch.device) -> float:
    """Bytes read plus bytes written per second by the device's own copy: the median of several large ones."""
    size = _COPIED[device.type]
    free = available_memory(device)
    if free is not None:
        size = min(size, free // 4)
    source = torch.ones(max(size, 1), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    seconds = [_copy(source, target) for _ in range(_REPEATS)]
    return 2 * source.nbytes / statistics.median(seconds)


def _copy(source: torch.Tensor, target: torch.Tensor) -> float:
    watch = Stopwatch(source.device)
    target.copy_(source)
    watch.mark()
    if source.is_cuda:
        torch.cuda.synchronize(source.device)
    return watch.seconds()[0]
