"""Bias and penalties of a row for the kernels, which apply them after the tokens that a round accepts."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from ctypes import _Pointer, pointer

from specchat.engine.kernels.round import TextMemory
from specchat.engine.kernels.structures import CPenalties
from specchat.engine.request import Sampling


def break_flags(texts: Sequence[str], names: Iterable[str]) -> array[int]:
    """Flags [V], whether the name of a token contains one of the texts: DRY's sequence breakers."""
    return array("B", [any(text in name for text in texts) for name in names])


class RowPenalties:
    """`sk_penalties` of one row, and what has to live as long.

    Args:
        sampling: with bias or penalties.
        tokens: prompt and reply, which grows.
        prompt: tokens of the prompt.
        breaks: `break_flags` of its sequence breakers; None without DRY.
    """

    def __init__(
        self, sampling: Sampling, tokens: Sequence[int], prompt: int, breaks: array[int] | None = None
    ) -> None:
        self.tokens = tokens
        self._text = TextMemory()
        biased, bias = array("q", [t for t, _ in sampling.logit_bias]), array("f", [b for _, b in sampling.logit_bias])
        self._kept = (biased, bias, breaks)
        self._c = CPenalties(
            prompt=prompt,
            biased=biased.buffer_info()[0],
            bias=bias.buffer_info()[0],
            bias_count=len(bias),
            repetition=sampling.repetition_penalty,
            presence=sampling.presence_penalty,
            frequency=sampling.frequency_penalty,
            dry_multiplier=sampling.dry_multiplier if sampling.dry else 0.0,
            dry_base=sampling.dry_base,
            dry_allowed=sampling.dry_allowed_length,
            dry_last=sampling.dry_penalty_last_n,
            breaks=breaks.buffer_info()[0] if breaks else None,
        )
        self._pointer = pointer(self._c)

    def c(self) -> _Pointer[CPenalties]:
        """For the text as it is now."""
        self._text.append(self.tokens[self._text.count :])
        self._c.text, self._c.count = self._text.address, self._text.count
        return self._pointer
