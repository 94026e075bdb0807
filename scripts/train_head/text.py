"""Text in memory, with what the training needs of the target."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Text:
    """R rows of L columns, each row a few conversations one after the other."""

    tokens: Tensor
    """[R, L], int64."""
    begin: Tensor
    """[R, L], int64: the column where the token's conversation begins."""
    counted: Tensor
    """[R, L], bool: tokens of replies that the target chose, except tokens that complete a repeated n-gram."""
    log_total: Tensor
    """[R, L], float32: log-sum-exp over V of the target's logits at each token."""
    tapped: Tensor
    """[R, L, taps x d], in the target's dtype: its hidden states; the last d of them are the last one."""

    @classmethod
    def empty(cls, rows: int, length: int, width: int, dtype: torch.dtype, device: torch.device) -> Text:
        """Without text; `width` is that of the hidden states, taps x d."""
        one = torch.zeros(rows, length, dtype=torch.long, device=device)
        tapped = torch.zeros(*one.shape, width, dtype=dtype, device=device)
        return cls(one, one.clone(), one.bool(), one.float(), tapped)

    def copy(self, other: Text, first: int) -> None:
        """Copy the rows of another text to the rows from `first` on."""
        for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True):
            mine[first : first + len(theirs)].copy_(theirs)
