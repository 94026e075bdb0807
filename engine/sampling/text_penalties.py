"""Bias and penalties of one row, for logits on the host: the same bits as `engine.sampling.penalties`.

The distinct tokens and the repetitions of the text are kept between rounds and updated with its new tokens. Next to a
short pass the dozen operations of `engine.sampling.penalties` would take long.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from specchat.engine.sampling.dry import Repetitions
from specchat.engine.sequence.sequence import SequenceState

Logits = NDArray[np.float32]


class TextPenalties:
    """The penalties of one row.

    Args:
        row: its text must not shrink.
    """

    def __init__(self, row: SequenceState) -> None:
        self.row = row
        self._repetitions = Repetitions(row) if row.request.sampling.dry else None
        self._text, self._reply = _Distinct(), _Distinct()
        self._read = 0
        sampling = row.request.sampling
        penalties = sampling.repetition_penalty - 1, sampling.presence_penalty, sampling.frequency_penalty
        self.raises = min(penalties) < 0 or any(bias > 0 for _, bias in sampling.logit_bias)
        """Whether a logit may become larger."""

    def apply(self, logits: Logits, drafted: Sequence[int], parents: Sequence[int]) -> None:
        """Change logits in place, in the order of `engine.sampling.penalties.Adjustment`.

        Args:
            logits: [K + 1, V], after the row's last token and each node of a tree.
            drafted: [K] tokens.
            parents: [K], the node before each; node 0 is the row's last token.
        """
        row, sampling = self.row, self.row.request.sampling
        self._text.extend(row.tokens[self._read :])
        self._reply.extend(row.tokens[max(self._read, row.prompt_length) :])
        self._read = len(row.tokens)
        paths: list[tuple[int, ...]] = [()]
        paths += ((*paths[parent], token) for token, parent in zip(drafted, parents, strict=True))
        for token, bias in sampling.logit_bias:
            logits[:, token] += np.float32(bias)
        if sampling.repetition_penalty != 1:
            penalty = np.float32(sampling.repetition_penalty)
            for place in self._text.places(paths):
                score = logits[place]
                logits[place] = np.where(score < 0, score * penalty, score / penalty)
        if sampling.presence_penalty:
            for place in self._reply.places(paths):
                logits[place] -= np.float32(sampling.presence_penalty)
        if penalty := np.float32(sampling.frequency_penalty):
            for values, path in zip(logits, paths, strict=True):
                np.subtract.at(values, [*row.tokens[row.prompt_length :], *path], penalty)
        if self._repetitions:
            for node, found in enumerate(self._repetitions.penalties(drafted, parents)):
                for token, value in found.items():
                    logits[node, token] -= np.float32(value)


class _Distinct:
    """The distinct tokens of a growing text."""

    def __init__(self) -> None:
        self._known = set[int]()
        self._tokens = array("q")

    def extend(self, tokens: Sequence[int]) -> None:
        """Add tokens to the text."""
        for token in tokens:
            if token not in self._known:
                self._known.add(token)
                self._tokens.append(token)

    def places(self, paths: Sequence[tuple[int, ...]]) -> Iterator[tuple[slice | int, list[int] | NDArray[np.int64]]]:
        """Indices of logits [T, V]: of the text's tokens after all nodes, then of new tokens on each path."""
        yield slice(None), np.array(self._tokens)
        for node, path in enumerate(paths):
            if new := [token for token in dict.fromkeys(path) if token not in self._known]:
                yield node, new
