"""Bias and penalties of running rows as the packed CPU kernels read them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from ctypes import _Pointer, pointer

from specchat.engine.kernels.round import TextMemory
from specchat.engine.kernels.structures import CPenalties
from specchat.engine.sampling_settings import Sampling
from specchat.engine.sequence.sequence import SequenceState


class RowPenalties:
    """`sk_penalties` of one row, and what has to live as long.

    Args:
        sampling: with bias or penalties.
        tokens: prompt and reply, which grows.
        prompt: tokens of the prompt.
        breaks: flags [V], whether the name of a token contains one of DRY's sequence breakers; None without DRY.
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


class PenaltiesOfRows:
    """Bias and penalties by slot; created when a row starts.

    Args:
        vocabulary: V.
    """

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        self._known: dict[int, RowPenalties] = {}
        self._breaks: dict[tuple[str, ...], array[int]] = {}

    def of(self, row: SequenceState) -> RowPenalties:
        """Bias and penalties of a row."""
        known = self._known.get(row.slot)
        if known is None or known.tokens is not row.tokens:
            sampling, texts = row.request.sampling, row.request.sampling.dry_sequence_breakers
            if sampling.dry and texts not in self._breaks:
                self._breaks[texts] = array(
                    "B", [any(text in name for text in texts) for name in row.text.names(self.vocabulary)]
                )
            known = RowPenalties(sampling, row.tokens, row.reply_begin, self._breaks.get(texts))
            self._known[row.slot] = known
        return known
