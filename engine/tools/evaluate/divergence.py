"""Where two targets part along one text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specchat.engine.decoding.backend import Backend
from specchat.engine.tools.evaluate.text_runner import passes
from specchat.engine.tools.evaluate.texts import Text


@dataclass(frozen=True, slots=True)
class Divergence:
    """What two targets say in each place of a reply of L tokens, both behind the text's own tokens."""

    text: Text
    ours: tuple[int, ...]
    """[L]: the first one's likeliest token."""
    theirs: tuple[int, ...]
    """[L]: the other's."""
    gaps: tuple[float, ...]
    """[L]: difference of the first one's two largest logits, which is the logarithm of their probabilities' ratio."""
    kl: tuple[float, ...]
    """[L]: Kullback-Leibler divergence of the other's distribution from the first one's, Σ p log(p / q), in nats."""

    @property
    def places(self) -> list[int]:
        """Where their likeliest tokens differ."""
        return [place for place, (one, other) in enumerate(zip(self.ours, self.theirs, strict=True)) if one != other]


@torch.inference_mode()
def measure(ours: Backend, theirs: Backend, text: Text, chunk: int) -> Divergence:
    """Let both read a text, in chunks of so many tokens.

    Args:
        ours: the first target.
        theirs: the other, on the same device, its token ids the first one's.
        text: with a reply of at least one token.
        chunk: tokens of a pass.
    """
    found: list[Tensor] = []
    for (one, _), (other, _) in zip(passes(ours, text, chunk), passes(theirs, text, chunk), strict=True):
        if one is not None and other is not None:
            found.append(_compare(one, other))
    columns: Sequence[Sequence[float]] = torch.cat(found).T.tolist()
    best, their_best, gaps, kl = columns
    return Divergence(text, tuple(map(int, best)), tuple(map(int, their_best)), tuple(gaps), tuple(kl))


def _compare(ours: Tensor, theirs: Tensor) -> Tensor:
    """[T, 4], float64, on the host: both likeliest tokens, top-2 gap and divergence, of logits [T, V] and [T, V'].

    Embeddings of one family are padded to different sizes: distributions are over the tokens that both have.
    """
    vocabulary = min(ours.shape[1], theirs.shape[1])
    ours, theirs = ours[:, :vocabulary].float(), theirs[:, :vocabulary].float()
    top2 = ours.topk(2)
    p, q = ours.log_softmax(-1), theirs.log_softmax(-1)
    # Where p is 0 both logarithms may be infinite; rounding may leave a little below 0.
    kl = (p.exp() * (p - q)).nan_to_num_(nan=0.0).sum(-1).clamp_(min=0.0)
    figures = (top2.indices[:, 0], theirs.argmax(-1), top2.values[:, 0] - top2.values[:, 1], kl)
    return torch.stack([each.double() for each in figures], dim=1).cpu()
