"""DRY and XTC in plain words, for comparison: whole texts are looked at again for every token."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specchat.engine import Sampling


def penalised(logits: Tensor, sampling: Sampling, text: Sequence[int], name: Callable[[int], str]) -> Tensor:
    """Logits [V] after a text, with DRY."""
    out = logits.float().clone()
    last = sampling.dry_penalty_last_n
    text = list(text if last < 0 else text[max(len(text) - last, 0) :])
    breakers = {t for t in text if any(breaker in name(t) for breaker in sampling.dry_sequence_breakers)}
    for token in set(text):
        counts = [0]
        for place in (i for i, other in enumerate(text) if other == token):
            count = 0
            while count < place and text[place - 1 - count] == text[-1 - count] and text[-1 - count] not in breakers:
                count += 1
            counts.append(count)
        if max(counts) >= sampling.dry_allowed_length:
            out[token] -= sampling.dry_multiplier * sampling.dry_base ** (max(counts) - sampling.dry_allowed_length)
    return out


def without_top_choices(p: Tensor, threshold: float) -> Tensor:
    """A distribution [V] after XTC: of the tokens that reach the threshold only the least likely is left."""
    above = [token for token in p.argsort(descending=True).tolist() if p[token] >= threshold]
    left = p.clone()
    left[above[:-1]] = 0
    return left / left.sum()


def mixed(p: Tensor, sampling: Sampling) -> Tensor:
    """What a token is drawn from where XTC's draw is not known."""
    chance = sampling.xtc_probability
    return (1 - chance) * p + chance * without_top_choices(p, sampling.xtc_threshold)


def names(token: int) -> str:
    """A token's text, where tokens are bytes."""
    return bytes([token]).decode("latin-1") if token < 256 else ""


def random_text(tokens: int, length: int, seed: int) -> list[int]:
    """A text of few tokens, which repeats itself."""
    return torch.randint(tokens, (length,), generator=torch.Generator().manual_seed(seed)).tolist()
