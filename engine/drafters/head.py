"""Drafting with a head: a layer of its own on the target's hidden states (`engine.head`)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from engine.cached_model import CachedModel
from engine.drafters.base import Draft, Drafter
from engine.draws import Stream, uniforms
from engine.head.memory import HeadMemory
from engine.head.network import DraftHead
from engine.penalties import Adjustment, Penalties
from engine.row import Row
from engine.sampling import SamplingRows, draw, most_likely, standardise

WINDOW = 256
"""Places a draft looks back: as far as the head has been trained on."""


class HeadDrafter(Drafter):
    """A head beside its target, with a memory in every slot.

    Every draft step is one pass of the head for all rows; tokens and distributions stay on the device. The head scores
    a part of the vocabulary only. Outside of it q is 0, which acceptance takes as it is (Leviathan et al. 2023,
    Appendix A.1 asks nothing of q but that the draft was drawn from it).

    Args:
        head: on the target's device, in its dtype.
        vocabulary: [V'], int64, the tokens that the head can draft.
        target: whose hidden states it reads; its taps are the head's.
        penalties: shared with the target, so that p and q know the same context.
    """

    name = "head"

    def __init__(self, head: DraftHead, vocabulary: Tensor, target: CachedModel, penalties: Penalties) -> None:
        self._head = head
        self._vocabulary = vocabulary
        self._embedding: Tensor = target.model.get_input_embeddings().weight
        output: Tensor = target.model.get_output_embeddings().weight
        self._scores = output[vocabulary].contiguous()
        self._size = len(output)
        self._penalties = penalties
        self._memory = HeadMemory(head, target.cache.slots, target.cache.columns)

    @property
    def bytes(self) -> int:
        """Memory beyond the head's weights."""
        return self._memory.bytes + self._scores.nbytes

    def admit(self, row: Row) -> None:
        """Find what is known of the prompt; the target reads again what is not."""
        row.cached = min(row.cached, self._memory.admit(row))

    def absorb(self, rows: Sequence[Row], tapped: Tensor) -> None:
        """Keep the states of what the target has read."""
        self._memory.absorb(rows, tapped)

    def release(self, row: Row) -> None:
        """Leave the slot's memory to the next turn."""
        self._memory.release(row)

    @torch.inference_mode()
    def propose(self, rows: Sequence[Row], gammas: Sequence[int]) -> Draft:
        """`max(gammas)` draft steps for all rows; q is kept unless every row is greedy."""
        steps, device = max(gammas), self._embedding.device
        if any(len(row.tokens) < 2 for row in rows):  # nothing has been read yet
            return Draft([[] for _ in rows], [0] * len(rows))
        settings = SamplingRows.of([row.request.sampling for row in rows], device)
        adjustment = self._penalties.of(rows)
        u = torch.from_numpy(uniforms([r.seed for r in rows], [r.rounds for r in rows], Stream.DRAFT, steps)).to(device)
        drafted = self._memory.read(rows, self._embedding, WINDOW)
        tokens = torch.empty(len(rows), 0, dtype=torch.long, device=device)
        distributions: list[Tensor] = []
        for step in range(steps):
            if step:
                embedded = functional.embedding(tokens[:, -1:], self._embedding)
                drafted = self._memory.extend(rows, step, self._head.again(drafted), embedded, WINDOW)
            logits = drafted @ self._scores.T
            token, q = self._choose(logits, tokens, step, settings, adjustment, u)
            if q is not None:
                distributions.append(q)
            tokens = torch.cat([tokens, token[:, None]], dim=1)
        return Draft(tokens, list(gammas), torch.stack(distributions, 1) if distributions else None)

    def _choose(
        self,
        logits: Tensor,
        drafted: Tensor,
        step: int,
        settings: SamplingRows,
        adjustment: Adjustment | None,
        u: Tensor,
    ) -> tuple[Tensor, Tensor | None]:
        """The next token of each row [B] from scores [B, 1, V'], and its distribution [B, V] unless all are greedy."""
        if adjustment is not None:
            logits = adjustment.apply(self._spread(logits, -torch.inf), drafted, first=step)
            if settings.all_greedy:
                return most_likely(logits)[:, 0], None
            q = standardise(logits, settings)[:, 0]
            return draw(q, u[:, step]), q
        if settings.all_greedy:
            return self._vocabulary[most_likely(logits)[:, 0]], None
        q = standardise(logits, settings)
        return self._vocabulary[draw(q[:, 0], u[:, step])], self._spread(q, 0.0)[:, 0]

    def _spread(self, values: Tensor, elsewhere: float) -> Tensor:
        """[B, 1, V] with the values [B, 1, V'] in their places."""
        whole = torch.full((*values.shape[:-1], self._size), elsewhere, dtype=values.dtype, device=values.device)
        whole[..., self._vocabulary] = values
        return whole
