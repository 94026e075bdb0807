"""Masks of constrained rows: p and q after a text are those of the tokens that may follow it.

A mask is a function of the text before a position, drafted tokens included, as penalties are: logits of other tokens
become -inf before anything else. Drafts are cut where a token is forbidden (`engine.decoding.constrained`). What
remains of a drawn draft is distributed as q without the forbidden tokens, so q is masked too; then acceptance is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import torch
from torch import Tensor

from specchat.engine.decoding.draft import Draft, DraftBatch
from specchat.engine.device.device import to_device
from specchat.engine.sequence.sequence import SequenceState


def begin_masks(rows: Sequence[SequenceState], drafts: Sequence[Draft]) -> None:
    """Begin to compute the masks of constrained rows in other threads, during the target's pass."""
    for row, draft in zip(rows, drafts, strict=True):
        if row.constraint:
            row.constraint.ask(row.tokens, draft.on_host, draft.tree.children)


def masked(rows: Sequence[SequenceState], logits: Tensor, drafts: DraftBatch) -> tuple[Tensor, DraftBatch]:
    """Mask logits [B, T, V] of the target after each node, and the drafts' q; unchanged if no row is constrained."""
    constrained = [i for i, row in enumerate(rows) if row.constraint]
    if not constrained:
        return logits, drafts
    logits = logits.to(torch.float32, copy=True)
    q = None if drafts.q is None else drafts.q.clone()
    for i in constrained:
        forbidden = ~_allowed(rows[i], logits)
        logits[i, : len(forbidden)].masked_fill_(forbidden, -inf)
        # A tree that lists its candidates is not cut, and its distributions are not those of its nodes.
        if q is not None and drafts.drawn[i] and drafts.trees[i].tests is None:
            own = q[i, : len(forbidden)]
            places = slice(None) if drafts.support is None else drafts.support.tokens
            own.masked_fill_(forbidden[: len(own), places], 0.0)
            own /= own.sum(-1, keepdim=True).clamp_(min=torch.finfo(own.dtype).tiny)
    return logits, replace(drafts, q=q)


def _allowed(row: SequenceState, logits: Tensor) -> Tensor:
    """Whether each token may follow each node of a row's draft: [1 + K, V], bool."""
    assert row.constraint
    words = to_device(row.constraint.masks(row.tokens), logits.device)
    bits = words[..., None] >> torch.arange(32, dtype=torch.int32, device=words.device) & 1
    return bits.flatten(1)[:, : logits.shape[-1]].bool()
