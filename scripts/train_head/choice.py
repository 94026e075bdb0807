"""How the target chooses its tokens: greedily, at temperature 1, or greedily with the penalties of the default chat.

The penalties of `engine.sampling.penalties`, for all rows at once and on the device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specchat.engine.settings import Sampling

GREEDY, SAMPLED, PENALISED = range(3)
SETTINGS = 0.25, 0.3, 0.45
"""Fractions of conversations that are greedy, at temperature 1, and greedy with penalties."""
CHAT = Sampling(repetition_penalty=1.1, dry_multiplier=0.8)
"""Penalties of the default chat."""
_QUESTIONS = 0.8
"""Temperature of user turns."""
_LARGEST = 30
"""Most tokens that a repetition counts beyond the allowed ones: no token is left a chance long before."""


def breakers(tokenizer: Any, vocabulary: int, device: torch.device) -> Tensor:
    """[V], bool: the tokens that no repetition reaches across."""
    backend = tokenizer.backend_tokenizer
    tokens = [[token] for token in range(backend.get_vocab_size())]
    texts = backend.decode_batch(tokens, skip_special_tokens=False)
    breaks = [any(mark in text for mark in CHAT.dry_sequence_breakers) for text in texts]
    return torch.tensor([*breaks, *[False] * (vocabulary - len(breaks))], device=device)


def repeats(scores: Tensor, tokens: Tensor, counts: Tensor) -> Tensor:
    """DRY's penalties [R, V] of tokens that would continue a repetition.

    Args:
        scores: [R, V]; only its shape and dtype are used.
        tokens: [R, L], int64.
        counts: [R, L], int64: the length of the repetition that ends at each column and at the last token; 0 at and
            beyond that token.
    """
    lengths = counts[:, :-1].float() - CHAT.dry_allowed_length
    worth = CHAT.dry_multiplier * CHAT.dry_base ** lengths.clamp(max=_LARGEST)
    worth = torch.where(lengths >= 0, worth, 0.0)
    return torch.zeros_like(scores).scatter_reduce(1, tokens[:, 1:], worth, "amax")


def pick(scores: Tensor, present: Tensor, repeats: Tensor, setting: Tensor, asking: Tensor) -> Tensor:
    """One token per row [R], int64.

    Args:
        scores: [R, V], float32: logits.
        present: [R, V], bool: tokens of the conversation so far.
        repeats: [R, V]: as the function `repeats` returns them.
        setting: [R, 1], int64: `GREEDY`, `SAMPLED` or `PENALISED`, for replies.
        asking: [R, 1], bool: whether the row writes a user turn.
    """
    penalty = CHAT.repetition_penalty
    penalised = torch.where(present, torch.where(scores > 0, scores / penalty, scores * penalty), scores) - repeats
    scores = torch.where(~asking & (setting == PENALISED), penalised, scores)
    temperature = torch.where(asking, _QUESTIONS, torch.where(setting == SAMPLED, 1.0, 0.0))
    # The largest score plus Gumbel noise is a sample of the softmax.
    noise = -torch.rand_like(scores).clamp(min=1e-30).log().neg().log()
    return (scores + temperature * noise).argmax(-1)
