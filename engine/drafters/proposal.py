"""The drafts of several drafters as one batch for the target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.drafters.base import Draft
from engine.sampling import one_hot


@dataclass(frozen=True, slots=True)
class Proposal:
    """What the target is to judge."""

    tokens: Tensor
    """[B, γ], int64, on the device; 0 beyond a row's length."""
    lengths: list[int]
    q: Tensor | None
    """[B, γ, V], float32; None where every token was certain."""


def merge(drafts: Sequence[tuple[list[int], Draft]], rows: int, device: torch.device) -> Proposal:
    """Put each draft's rows where they belong in the batch.

    Args:
        drafts: each with the indices of the rows it is for.
        rows: B.
        device: where the proposal is judged.
    """
    if len(drafts) == 1 and drafts[0][0] == list(range(rows)):
        draft = drafts[0][1]
        tokens = _tensor(draft, device)
        return Proposal(tokens, draft.lengths, None if draft.q is None else draft.q[:, : tokens.shape[1]])
    lengths = [0] * rows
    tokens = torch.zeros(rows, max((max(d.lengths) for _, d in drafts), default=0), dtype=torch.long, device=device)
    vocabulary = next((d.q.shape[-1] for _, d in drafts if d.q is not None), None)
    q = None if vocabulary is None else torch.zeros(*tokens.shape, vocabulary, device=device)
    for mine, draft in drafts:
        part = _tensor(draft, device)
        index = torch.tensor(mine, device=device)
        tokens[index, : part.shape[1]] = part
        if q is not None and vocabulary is not None:
            q[index, : part.shape[1]] = one_hot(part, vocabulary) if draft.q is None else draft.q[:, : part.shape[1]]
        for i, length in zip(mine, draft.lengths, strict=True):
            lengths[i] = length
    return Proposal(tokens, lengths, q)


def _tensor(draft: Draft, device: torch.device) -> Tensor:
    """The draft's tokens [rows, γ] on the device, γ its longest."""
    longest = max(draft.lengths)
    if isinstance(draft.tokens, Tensor):
        return draft.tokens[:, :longest]
    padded = [tokens + [0] * (longest - len(tokens)) for tokens in draft.tokens]
    return torch.tensor(padded, dtype=torch.long, device=device).reshape(len(padded), longest)
