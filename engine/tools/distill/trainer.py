"""Training for a given time, with a checkpoint every few minutes.

Heads that run with quantised targets are trained for 4-bit weights by straight-through estimation (Bengio et al. 2013,
arXiv 1308.3432, section 2.3): the loss is that of the rounded weights, its gradient is applied to the full ones.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from specchat.engine.files import replacing
from specchat.engine.kernels.packed_matrix import GROUP
from specchat.engine.models.disk import disk_errors
from specchat.engine.models.packed.quantize import can_quantize
from specchat.engine.research.ngram import MAX_ORDER
from specchat.engine.tools.distill.corpus import Conversation, Corpus
from specchat.engine.tools.distill.objective import Agreement, Batch

ROWS = 8
LENGTH = 256
"""Rows per batch, and tokens per row."""
RATE = 1.5e-3
"""Peak learning rate of heads."""
AGAIN = 0.5
"""Peak learning rate of a draft that was trained before, relative to a new one: it needs no large steps, and the
optimiser does not know its gradients yet."""
_LEAST = 0.02
"""Fraction of the peak learning rate that is left at the end (cosine decay)."""
_WARM_UP = 20
_BETAS = (0.9, 0.95)
_DECAY = 0.1
_CLIP = 1.0
_POOL = 4
"""Shards that a batch is drawn from: few enough to fit into memory."""
CHECKPOINT_S = 120.0

_LARGEST = 15
"""Largest 4-bit code."""

Loss = Callable[[Batch], tuple[Tensor, list[Agreement]]]
"""Gives the loss on a batch, and the agreement with the target at each drafted position."""


@contextmanager
def rounded(network: nn.Module) -> Iterator[None]:
    """Round the weights of linear layers to 4-bit codes inside the context."""
    layers = [each for each in network.modules() if type(each) is nn.Linear and can_quantize(each.weight)]
    full = [layer.weight.data for layer in layers]
    try:
        for layer in layers:
            layer.weight.data = round_to_four_bits(layer.weight.data)
        yield
    finally:
        for layer, weight in zip(layers, full, strict=True):
            layer.weight.data = weight


def round_to_four_bits(weight: Tensor) -> Tensor:
    """Weights [N, K] after `quantize(weight, "q4")` and dequantisation, on any device."""
    groups = weight.detach().float().view(len(weight), -1, GROUP)
    least = groups.amin(-1, keepdim=True).half().float()
    above = groups - least
    scale = (above.amax(-1, keepdim=True) / _LARGEST).half().float()
    codes = (above * scale.reciprocal().nan_to_num(posinf=0.0)).clamp(0, _LARGEST).round()
    return (least + codes * scale).flatten(1).to(weight.dtype)


@dataclass(slots=True)
class Progress:
    """Progress of a training."""

    steps: int = 0
    seconds: float = 0.0
    loss: float = math.nan
    overlap: tuple[float, ...] = ()
    """Mean Σ min(p, q) per draft step over the last batches, without tokens that the n-gram drafter would propose."""


class Trainer:
    """Trains one network.

    Args:
        network: in float32, on its device; changed in place.
        loss: loss of the network.
        dtype: dtype of the target; other than float32, the loss is computed with autocast.
        checkpoint: file to resume from, if it exists, and to write to.
        rate: peak learning rate.
        seed: seed of the order of the text.
        four_bits: train for linear layers rounded to 4-bit codes.
    """

    def __init__(
        self,
        network: nn.Module,
        loss: Loss,
        dtype: torch.dtype,
        checkpoint: Path,
        rate: float = RATE,
        seed: int = 0,
        *,
        four_bits: bool = False,
    ) -> None:
        self.progress = Progress()
        self._network, self._loss, self._dtype, self._rate = network, loss, dtype, rate
        self._device = next(network.parameters()).device
        self._file, self._rounding = checkpoint, rounded if four_bits else nullcontext
        self._random = torch.Generator().manual_seed(seed)
        self._optimiser = torch.optim.AdamW(network.parameters(), lr=rate, betas=_BETAS, weight_decay=_DECAY)
        if checkpoint.is_file():
            self._restore(torch.load(checkpoint, map_location=self._device, weights_only=True))

    def run(self, corpus: Corpus, seconds: float) -> Iterator[Progress]:
        """Train until `seconds` in total have been spent, earlier runs included. Yields after every update.

        Raises:
            EngineError: the disk is full.
        """
        saved = self.progress.seconds
        began = time.perf_counter() - self.progress.seconds
        batches = self._batches(corpus)
        while self.progress.seconds < seconds:
            self._update(next(batches), self.progress.seconds / seconds)
            self.progress.seconds = time.perf_counter() - began
            if self.progress.seconds - saved >= CHECKPOINT_S:
                self.save()
                saved = self.progress.seconds
            yield self.progress
        self.save()

    def save(self) -> None:
        """Write the checkpoint atomically."""
        state = {
            "head": self._network.state_dict(),
            "optimiser": self._optimiser.state_dict(),
            "random": self._random.get_state(),
            "steps": self.progress.steps,
            "seconds": self.progress.seconds,
        }
        with disk_errors(self._file.parent, "saving the training"), replacing(self._file) as part:
            torch.save(state, part)

    def _restore(self, state: dict[str, Any]) -> None:
        self._network.load_state_dict(state["head"])
        self._optimiser.load_state_dict(state["optimiser"])
        self._random.set_state(state["random"].cpu())
        self.progress = Progress(state["steps"], state["seconds"])

    def _update(self, batch: Batch, done: float) -> None:
        rate = self._rate * (_LEAST + (1 - _LEAST) * 0.5 * (1 + math.cos(math.pi * done)))
        rate *= min(1.0, (self.progress.steps + 1) / _WARM_UP)
        for group in self._optimiser.param_groups:
            group["lr"] = rate
        self._optimiser.zero_grad()
        with self._rounding(self._network):
            with torch.autocast(self._device.type, torch.bfloat16, enabled=self._dtype != torch.float32):
                loss, agreements = self._loss(batch)
            loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self._network.parameters(), _CLIP)
        self._optimiser.step()
        progress = self.progress
        progress.steps += 1
        progress.loss = loss.item()
        overlap = [float(a.overlap / a.count.clamp(min=1)) for a in agreements]
        before = progress.overlap or overlap
        progress.overlap = tuple(0.95 * old + 0.05 * new for old, new in zip(before, overlap, strict=True))

    def _batches(self, corpus: Corpus) -> Iterator[Batch]:
        """Endless batches from a few shards at a time, in a new random order for each epoch."""
        while True:
            shards = corpus.shards
            order = torch.randperm(len(shards), generator=self._random).tolist()
            for at in range(0, len(order), _POOL):
                pool = [talk for i in order[at : at + _POOL] for talk in corpus.read(shards[i])]
                turn = torch.randperm(len(pool), generator=self._random).tolist()
                for first in range(0, len(turn) - ROWS + 1, ROWS):
                    yield self._batch([pool[i] for i in turn[first : first + ROWS]])
                if len(turn) < ROWS:
                    yield self._batch(pool)

    def _batch(self, conversations: list[Conversation]) -> Batch:
        """A random window of each conversation; short ones are padded with positions that do not count."""
        rows = []
        for talk in conversations:
            start = int(torch.randint(max(len(talk.tokens) - LENGTH, 0) + 1, (), generator=self._random))
            counted = talk.sampled & ~repeated(talk.tokens)
            rows.append([_stretch(part, start) for part in (talk.tokens, counted, talk.features, talk.log_total)])
        tokens, counted, tapped, total = (torch.stack(part).to(self._device) for part in zip(*rows, strict=True))
        return Batch(tokens.long(), counted, tapped, total)


def repeated(tokens: Tensor) -> Tensor:
    """Tokens [T], bool, that complete an n-gram seen before, which the n-gram drafter would propose."""
    seen: set[tuple[int, ...]] = set()
    marks = []
    ids = tokens.tolist()
    for end in range(1, len(ids) + 1):
        gram = tuple(ids[max(end - MAX_ORDER, 0) : end])
        marks.append(gram in seen)
        seen.add(gram)
    return torch.tensor(marks)


def _stretch(tensor: Tensor, start: int) -> Tensor:
    part = tensor[start : start + LENGTH]
    missing = LENGTH - len(part)
    return torch.cat([part, part.new_zeros(missing, *part.shape[1:])]) if missing else part
