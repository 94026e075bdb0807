"""Roofline: bytes that a round has to read, against the device's copy bandwidth.

Decoding one token at a time is bound by reading the weights. A device that reads as fast as it copies can therefore
emit at most bandwidth / bytes per token tokens per second; the fraction reached tells how efficient a decoder is.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

import torch

from specchat.engine.device.memory import available_memory
from specchat.engine.device.stopwatch import Stopwatch
from specchat.engine.models.packed.load import PackedModel
from specchat.engine.models.packed.network import held
from specchat.engine.worker.assembly import Assembly
from specchat.engine.worker.obtain import Model

_COPIED = {"cpu": 256 << 20, "cuda": 1 << 30}
"""Bytes of the copied block: far larger than the processor's caches."""
_REPEATS = 10


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that passes have to read; computed, not measured."""

    weights: int
    """Bytes of weights read by one target pass; 0 if unknown (encoder-decoder models)."""
    cache: int
    """Bytes of the target's KV cache per token."""
    draft_weights: int
    """Bytes of weights read by one step of the draft model (the first one) or head; 0 without either."""
    draft_cache: int

    @classmethod
    def of(cls, assembly: Assembly) -> Traffic:
        """Traffic of loaded models."""
        cache = assembly.target.cache
        room = cache.slots * cache.columns
        others = sum(each.cache.bytes for each in assembly.draft_runners[1:])
        return cls(
            weights=weights_read(assembly.model) if assembly.model.start is None else 0,
            cache=cache.bytes // room,
            draft_weights=_draft_weights(assembly),
            draft_cache=(assembly.cache_bytes - cache.bytes - others) // room,
        )


def _draft_weights(assembly: Assembly) -> int:
    head = assembly.parts.get("head")
    if head is not None:
        return head.weight_bytes + assembly.score_bytes
    return weights_read(assembly.drafts[0]) if assembly.drafts else 0


def weights_read(loaded: Model) -> int:
    """Bytes of weights that one pass reads: all but an untied input embedding, of which it reads a few rows."""
    if isinstance(loaded, PackedModel):
        return loaded.weight_bytes - (0 if loaded.described.tied else loaded.embedding.data.nbytes)
    network: Any = loaded.model
    embedding, head = network.get_input_embeddings(), network.get_output_embeddings()
    (table, size), output = held(embedding), None if head is None else held(head)[0]
    return loaded.weight_bytes - (0 if output is table else size)


def copy_bandwidth(device: torch.device) -> float:
    """Copy bandwidth of the device: bytes read plus bytes written per second, median of several large copies."""
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
