"""Updates of a head on windows of text, each one CUDA graph.

The loss is that of `specchat distill`: `engine.tools.distill.trainer.acceptance_loss` over the steps of a draft, for
weights that are rounded to 4 bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from scripts.train_head.graphs import captured, compiled
from scripts.train_head.text import Text
from specchat.engine.drafters.head.network import DraftHead
from specchat.engine.tools.distill.eagle import unroll
from specchat.engine.tools.distill.trainer import Batch, acceptance_loss, rounded

DEPTH = 4
"""Draft steps that the head is trained over."""
ROWS, LENGTH = 8, 256
"""Windows of an update, and their columns."""
_SHARE = 0.5
"""Fraction of positions trained beyond the first step."""
_NOISE = 0.03
"""Standard deviation of the random factor on hidden states."""
_FADE = 0.8
"""Weight of each draft position's loss relative to the one before."""
_RATE = 1e-3
"""Peak learning rate."""
_LEAST = 0.02
"""Fraction of it that is left at the end (cosine decay)."""
_WARM_UP = 200
"""Updates until it is reached."""
_BETAS = 0.9, 0.95
_DECAY = 0.1
_CLIP = 1.0
_AVERAGE = 0.999
"""What the moving average of the weights keeps at an update."""
_SHOWN = 0.01
"""Weight of an update in the mean overlap."""


class Learner:
    """Trains a head on text.

    Args:
        head: in float32, changed in place.
        target: the network of the target.
        vocabulary: [V'], int64: the tokens that can be drafted.
        text: what updates draw from.
    """

    def __init__(self, head: DraftHead, target: Any, vocabulary: Tensor, text: Text) -> None:
        self._head, self._text = head, text
        self._embedding = target.get_input_embeddings().weight
        self.scores = target.get_output_embeddings().weight[vocabulary].contiguous()
        """[V', d], the target's output embeddings of the tokens that can be drafted."""
        device = text.tokens.device
        self.filled = torch.ones((), device=device)
        """Rows of the text that are written."""
        self.rate = torch.tensor(0.0, device=device)
        """Learning rate of the last update."""
        self.average = {name: weight.detach().clone() for name, weight in head.state_dict().items()}
        """Moving average of the weights."""
        self.overlap = torch.zeros(DEPTH, device=device)
        """Mean Σ min(p, q) at each position of a draft over the last updates."""
        self.updates = 0
        on_gpu = device.type == "cuda"
        self._optimiser = torch.optim.AdamW(
            head.parameters(), lr=self.rate, betas=_BETAS, weight_decay=_DECAY, capturable=on_gpu, foreach=on_gpu
        )
        self._judge = compiled(judge_drafts, device)
        self._replay: Callable[[], None] | None = None

    def update(self, done: float) -> None:
        """One update, when a fraction `done` of the time is over."""
        rate = _RATE * (_LEAST + (1 - _LEAST) * 0.5 * (1 + math.cos(math.pi * min(done, 1.0))))
        self.rate.fill_(rate * min(1.0, (self.updates + 1) / _WARM_UP))
        self.updates += 1
        if self._replay is None:
            self._replay = captured(self._update, [self.overlap])
        self._replay()

    def _update(self) -> None:
        head = self._head
        head.zero_grad(set_to_none=True)
        with rounded(head):
            with self._autocast():
                surrogate, overlap, _ = self.loss(self._drawn(), _NOISE, _SHARE)
            surrogate.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(head.parameters(), _CLIP, foreach=True)
        self._optimiser.step()
        with torch.no_grad():
            now = head.state_dict()
            torch._foreach_lerp_(list(self.average.values()), [now[name] for name in self.average], 1 - _AVERAGE)
            self.overlap.lerp_(overlap, _SHOWN)

    @torch.no_grad()
    def judge(self, rows: Tensor, batches: int) -> tuple[list[float], list[float]]:
        """Σ min(p, q), and how often both have the same first token, at each position of a draft.

        Args:
            rows: int64, the rows of the text that windows are drawn from.
            batches: number of batches, each as large as an update's.
        """
        rates, firsts = torch.zeros(DEPTH, device=rows.device), torch.zeros(DEPTH, device=rows.device)
        for _ in range(batches):
            with rounded(self._head), self._autocast():
                _, overlap, first = self.loss(self._drawn(rows), 0.0, 1.0, agreement=True)
            rates += overlap / batches
            firsts += torch.stack(first) / batches
        return rates.tolist(), firsts.tolist()

    @torch.no_grad()
    def outputs(self, batches: int) -> Tensor:
        """What the head puts out along windows of the text [N, d], float32."""
        found = list[Tensor]()
        with rounded(self._head), self._autocast():
            for _ in range(batches):
                text = self._drawn()
                for drafted, places in self._unrolled(text, 0.0, 1.0):
                    found.append(drafted[text.counted[:, places + 1]].float())
        return torch.cat(found)

    def _unrolled(self, text: Text, noise: float, share: float) -> Iterator[tuple[Tensor, Tensor]]:
        """Drafted states and their places, as `unroll` yields them."""
        batch = Batch(text.tokens, text.counted, text.tapped, text.log_total)
        return unroll(self._head, self._embedding, batch, DEPTH, share, noise, text.begin)

    def _autocast(self) -> AbstractContextManager[Any]:
        """Matrix products in bfloat16, unless the target is in float32."""
        return torch.autocast(self.rate.device.type, torch.bfloat16, enabled=self.scores.dtype != torch.float32)

    def _drawn(self, among: Tensor | None = None) -> Text:
        """Random windows of the text, in these rows or in all that are written."""
        device, length = self.rate.device, self._text.tokens.shape[1]
        rows = (torch.rand(ROWS, device=device) * (self.filled if among is None else len(among))).long()
        rows = rows if among is None else among[rows]
        starts = torch.randint(0, max(length - LENGTH, 0) + 1, (ROWS, 1), device=device)
        columns = starts + torch.arange(min(LENGTH, length), device=device)
        return Text(*(part[rows[:, None], columns] for part in vars(self._text).values()))

    def loss(
        self, text: Text, noise: float, share: float, *, agreement: bool = False
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """A scalar whose gradient is that of the loss, and what the draft is worth at each position.

        The gradient by the scores is known, so nothing as large as the scores is kept for a backward pass.

        Args:
            text: B rows.
            noise: as of `unroll`.
            share: as of `unroll`.
            agreement: whether to count equal first tokens.

        Returns:
            The scalar; Σ min(p, q) by position; how often p and q have the same first token, by position, if wanted.
        """
        total: Any = 0.0
        rates, firsts, weights = list[Tensor](), list[Tensor](), list[float]()
        d = self._embedding.shape[1]
        for drafted, places in self._unrolled(text, noise, share):
            anchors = places - len(weights) - 1
            counted = text.counted[:, places + 1] & (text.begin[:, places + 1] == text.begin[:, anchors])
            weight = (counted / counted.sum().clamp(min=1)).flatten()[:, None]
            weights.append(_FADE ** len(weights))
            with torch.no_grad():
                p_scores = text.tapped[:, places, -d:].flatten(0, 1) @ self.scores.T
                q_scores = drafted.flatten(0, 1).to(self.scores.dtype) @ self.scores.T
                log_total = text.log_total[:, places].flatten()[:, None]
                toward, rate = self._judge(p_scores, log_total, q_scores, weight)
                gradient = (toward @ self.scores).view(drafted.shape)
                rates.append(rate)
                if agreement:
                    same = p_scores.argmax(-1) == q_scores.argmax(-1)
                    firsts.append((same[:, None] * weight).sum())
            total = total + weights[-1] * (drafted.float() * gradient.float()).sum()
        return total / sum(weights), torch.stack(rates), firsts


def judge_drafts(scores: Tensor, log_total: Tensor, drafted: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient [N, V'] of the loss by a draft's scores, in their dtype, and the weighted sum of Σ min(p, q).

    Args:
        scores: [N, V'], of the target.
        log_total: [N, 1], float32: log-sum-exp of the target's logits over V.
        drafted: [N, V'], of the draft.
        weight: [N, 1], of each position.
    """
    p, log_q = (scores.float() - log_total).exp(), drafted.float().log_softmax(-1)
    loss, toward = acceptance_loss(p, log_q)
    return (toward * weight).to(drafted.dtype), ((-loss).exp()[:, None] * weight).sum()
