"""Bias and penalties of a row for the kernels, which apply them after the tokens that a round accepts."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from ctypes import pointer
from functools import partial
from typing import TYPE_CHECKING

from specchat.engine.kernels.structures import CPenalties
from specchat.engine.request import Sampling

if TYPE_CHECKING:
    from ctypes import _Pointer

_UNKNOWN = 2


class Breaks:
    """Sequence breakers of DRY: a flag per token, unknown until `learn`.

    Args:
        texts: a token whose name contains one of them breaks repetitions.
        vocabulary: V.
    """

    def __init__(self, texts: Sequence[str], vocabulary: int) -> None:
        self._texts = texts
        self.flags = array("B", bytes([_UNKNOWN]) * vocabulary)

    def learn(self, tokens: Iterable[int], name: Callable[[int], str]) -> None:
        """Set the flags of tokens; a prompt may have tokens beyond the vocabulary of the logits."""
        for token in tokens:
            if token < len(self.flags) and self.flags[token] == _UNKNOWN:
                self.flags[token] = any(text in name(token) for text in self._texts)


class RowPenalties:
    """`sk_penalties` of one row, and what has to live as long.

    Args:
        sampling: with bias or penalties.
        tokens: prompt and reply, which grows.
        prompt: tokens of the prompt.
        name: of a token.
        breaks: for the row's sequence breakers.
    """

    def __init__(
        self, sampling: Sampling, tokens: Sequence[int], prompt: int, name: Callable[[int], str], breaks: Breaks
    ) -> None:
        self.tokens = tokens
        self.learn = partial(breaks.learn, name=name)
        self._dry = sampling.dry
        self._text = array("q")
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
            breaks=breaks.flags.buffer_info()[0],
        )
        self._pointer = pointer(self._c)

    def c(self) -> _Pointer[CPenalties]:
        """For the text as it is now."""
        new = self.tokens[len(self._text) :]
        if self._dry:
            self.learn(new)
        self._text.extend(new)
        self._c.text, self._c.count = self._text.buffer_info()
        return self._pointer
