"""DRY ("don't repeat yourself", p-e-w 2024, pull request 5677 of text-generation-webui; as in llama.cpp): a penalty on
tokens that would continue a repetition.

Before each token, every earlier place is looked at whose last tokens are the text's last tokens too. The token at that
place is penalised by the number n of equal tokens. A drafted token is judged after the drafted tokens before it, in a
tree too, as in decoding one token at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specchat.engine.sampling_settings import Sampling
from specchat.engine.sequence.sequence import SequenceState

_LONGEST = 128
"""Largest number of equal tokens that is counted: with the usual base the penalty is infinite long before."""
_MOST = 1e6
"""Largest penalty. No token is left a chance, and its logit stays finite."""


def dry_penalties(row: SequenceState, drafted: Sequence[int], parents: Sequence[int]) -> list[dict[int, float]]:
    """Penalty by token, after the text of a row and after each node of a tree.

    Args:
        row: with the text and the settings.
        drafted: K drafted tokens.
        parents: [K], the node before each; node 0 is the text's last token, node k the k-th drafted one.
    """
    sampling = row.request.sampling

    @cache
    def breaks(token: int) -> bool:
        name = row.text.name(token)
        return any(text in name for text in sampling.dry_sequence_breakers)

    texts = [np.array(row.tokens)]
    for token, parent in zip(drafted, parents, strict=True):
        texts.append(np.append(texts[parent], token))
    return [
        {token: _penalty(sampling, count) for token, count in _repetitions(text, sampling, breaks).items()}
        for text in texts
    ]


def _repetitions(text: NDArray[Any], sampling: Sampling, breaks: Callable[[int], bool]) -> dict[int, int]:
    """The tokens that would continue a repetition at the end of a text, and how many tokens it has.

    Args:
        text: token ids.
        sampling: settings of DRY.
        breaks: whether no repetition reaches across a token.
    """
    last, window = len(text) - 1, sampling.dry_penalty_last_n
    first = max(len(text) - window, 0) if window > 0 else 0
    longest: dict[int, int] = {}
    ends = np.arange(last)  # ends of earlier stretches of `count` tokens that equal the last ones
    for count in range(1, _LONGEST + 1):
        token = text[len(text) - count]
        ends = ends[ends >= first + count - 1]
        ends = ends[text[ends - count + 1] == token]
        if not len(ends) or breaks(int(token)):
            break
        if count >= sampling.dry_allowed_length:
            longest |= dict.fromkeys(text[ends + 1].tolist(), count)
    return longest


def _penalty(sampling: Sampling, count: int) -> float:
    """Penalty of a token that would continue a repetition of `count` tokens."""
    try:
        power = sampling.dry_base ** (count - sampling.dry_allowed_length)
    except OverflowError:
        return _MOST
    return min(sampling.dry_multiplier * power, _MOST)
