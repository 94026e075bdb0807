"""Logit bias, repetition, presence and frequency penalties and DRY, applied to logits before they are standardised.

After a drafted token the context is prompt, reply, the drafted tokens before it and it, as in decoding one token at a
time. The tokens of every slot are kept on the device, by slot and column as in the KV cache: a context is a range of
columns plus drafted tokens, which are never stored. So no position needs a table of size V, and rejected drafts need no
cleanup. DRY is computed on the host, and not for drafts: their steps would wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specchat.engine.device.device import to_device
from specchat.engine.sequence.sequence import SequenceState
from specchat.engine.settings import Sampling


class Penalties:
    """Token contexts of the slots whose sequences use penalties or a bias, on the device.

    Args:
        slots: slots of the KV cache.
        columns: maximum number of tokens of prompt and reply together.
        device: of the logits.
    """

    def __init__(self, slots: int, columns: int, device: torch.device) -> None:
        self._device = device
        self._shape = slots, columns
        self._owners: list[SequenceState | None] = [None] * slots
        self._known = [0] * slots
        self._tokens: Tensor | None = None

    @torch.inference_mode()
    def of(self, rows: Sequence[SequenceState], *, drafts: bool = False) -> Adjustment | None:
        """Adjustment for these rows in the current round, or for their draft steps; None if no row needs any.

        Only tokens added to `SequenceState.tokens` since the last call are copied to the device, so a drafter and the
        target may both call this in one round.
        """
        needs = attrgetter("request.sampling." + ("adjusts_drafts" if drafts else "adjusts"))
        which = [i for i, row in enumerate(rows) if needs(row)]
        if not which:
            return None
        mine = [rows[i] for i in which]
        settings = [row.request.sampling for row in mine]
        tokens = self._catch_up(mine)
        slots, prompts, lengths, index = self._put(
            [[row.slot for row in mine], [row.reply_begin for row in mine], [len(row.tokens) for row in mine], which]
        )
        text = tokens[slots, : max(len(row.tokens) for row in mine)]
        column = torch.arange(text.shape[1], device=self._device)
        known = column < lengths[:, None]

        def penalty(name: str, off: float) -> Tensor | None:
            values = [float(getattr(s, name)) for s in settings]
            return self._put([values])[0][:, None, None] if any(value != off for value in values) else None

        return Adjustment(
            rows=None if len(mine) == len(rows) else index,
            bias=self._bias([s.logit_bias for s in settings]),
            text=text,
            known=known,
            replied=known & (column >= prompts[:, None]),
            repetition=penalty("repetition_penalty", 1.0),
            presence=penalty("presence_penalty", 0.0),
            frequency=penalty("frequency_penalty", 0.0),
            dry=[(at, row) for at, row in enumerate(mine) if row.request.sampling.dry],
        )

    def _catch_up(self, rows: Sequence[SequenceState]) -> Tensor:
        """Token table [slots, columns], int64, updated with all tokens of these rows."""
        if self._tokens is None:
            self._tokens = torch.zeros(self._shape, dtype=torch.long, device=self._device)
        slots: list[int] = []
        columns: list[int] = []
        tokens: list[int] = []
        for row in rows:
            known = self._known[row.slot] if self._owners[row.slot] is row else 0
            slots += [row.slot] * (len(row.tokens) - known)
            columns += range(known, len(row.tokens))
            tokens += row.tokens[known:]
            self._owners[row.slot], self._known[row.slot] = row, len(row.tokens)
        if tokens:
            slot, column, token = self._put([slots, columns, tokens])
            self._tokens[slot, column] = token
        return self._tokens

    def _bias(self, biases: Sequence[Sequence[tuple[int, float]]]) -> tuple[Tensor, Tensor] | None:
        """Token ids and bias values, [B, n] each, padded with a bias of 0 on token 0; None if no row has any."""
        most = max(len(bias) for bias in biases)
        if not most:
            return None
        filled = [[*bias, *[(0, 0.0)] * (most - len(bias))] for bias in biases]
        ids = self._put([[token for token, _ in bias] for bias in filled])
        return ids, self._put([[float(value) for _, value in bias] for bias in filled])

    def _put(self, numbers: list[list[int]] | list[list[float]]) -> Tensor:
        return to_device(numbers, self._device)


@dataclass(frozen=True, slots=True)
class Adjustment:
    """Bias and penalties of one round's rows, in float32: bias, repetition, presence and frequency penalty, DRY.

    The order is that of transformers, which applies sequence bias before the repetition penalty.
    """

    rows: Tensor | None
    """[M], int64: rows of the batch that are adjusted; None if all are."""
    bias: tuple[Tensor, Tensor] | None
    """Token ids and their bias, [M, n] each; None if no row has any."""
    text: Tensor
    """[M, L], int64: tokens of prompt and reply, padded."""
    known: Tensor
    """[M, L], bool: which of them are not padding."""
    replied: Tensor
    """[M, L], bool: which of them are of the reply."""
    repetition: Tensor | None
    """[M, 1, 1], float32, as the next two; None if no row uses it."""
    presence: Tensor | None
    frequency: Tensor | None
    dry: Sequence[tuple[int, SequenceState]] = ()
    """The rows that use DRY, with their place among the M rows."""

    @torch.inference_mode()
    def apply(self, logits: Tensor, drafted: Tensor, inside: Tensor | None = None, *, first: int = 0) -> Tensor:
        """Apply bias and penalties to the target's logits of a round, or to the logits of one draft step.

        Args:
            logits: [B, T, V], any float dtype; not changed. Logits of the target are after each node of a tree; logits
                of drafts for the positions `first` to first + T - 1 of a chain.
            drafted: [B, K], int64: the tokens drafted so far.
            inside: `TreeMask.inside` [B, T, T], T = K + 1, of the target's pass; None for a draft step.
            first: draft position of the first logits, at most K.

        Returns:
            [B, T, V], float32; rows without an adjustment are unchanged.
        """
        adjusted = logits.to(torch.float32, copy=True)  # no other operation is as large as they are
        mine = adjusted if self.rows is None else adjusted[self.rows]
        drafted = drafted if self.rows is None else drafted[self.rows]
        if inside is None:
            known = torch.arange(first, first + adjusted.shape[1], device=drafted.device)[:, None]
            before = (torch.arange(drafted.shape[1], device=drafted.device) < known).expand(len(drafted), -1, -1)
        else:
            before = (inside if self.rows is None else inside[self.rows])[..., 1 : 1 + drafted.shape[1]]
        if self.bias is not None:
            ids, values = (t[:, None].expand(-1, adjusted.shape[1], -1) for t in self.bias)
            mine.scatter_add_(-1, ids, values)
        tokens = torch.cat([self.text, drafted], dim=1)[:, None].expand(-1, before.shape[1], -1)
        if self.repetition is not None:
            ids, penalty = _each_once(tokens, _context(self.known, before), self.repetition, off=1.0)
            score = mine.gather(-1, ids)
            mine.scatter_(-1, ids, torch.where(score < 0, score * penalty, score / penalty))
        if self.presence is not None:
            ids, penalty = _each_once(tokens, _context(self.replied, before), self.presence, off=0.0)
            mine.scatter_(-1, ids, mine.gather(-1, ids) - penalty)
        if self.frequency is not None:
            # All addends of one logit are equal, so the order of additions on a device does not matter.
            mine.scatter_add_(-1, tokens, torch.where(_context(self.replied, before), -self.frequency, 0.0))
        if self.dry and inside is not None:
            self._discourage(mine, drafted, before)
        if self.rows is not None:
            adjusted[self.rows] = mine
        return adjusted

    def _discourage(self, mine: Tensor, drafted: Tensor, before: Tensor) -> None:
        """Apply DRY to logits [M, T, V] in place, after drafted tokens [M, K] of trees [M, T, K]."""
        places: list[tuple[int, int, int]] = []
        values: list[float] = []
        tokens, ancestors = drafted.tolist(), before.tolist()
        for at, row in self.dry:
            parents = [
                max((k for k in range(node) if own[k]), default=-1) + 1 for node, own in enumerate(ancestors[at][1:])
            ]
            for node, found in enumerate(dry_penalties(row, tokens[at], parents)):
                places += [(at, node, token) for token in found]
                values += found.values()
        if places:
            index = to_device(places, mine.device).T
            mine.index_put_(tuple(index), -to_device(values, mine.device, torch.float32), accumulate=True)


def _context(committed: Tensor, before: Tensor) -> Tensor:
    """Mask of the tokens of texts [M, L] and drafts [M, K] in the context of each of T places: [M, T, L + K], bool.

    Args:
        committed: [M, L], bool, of the texts.
        before: [M, T, K], bool: which drafted tokens are in each context.
    """
    return torch.cat([committed[:, None].expand(-1, before.shape[1], -1), before], -1)


def _each_once(tokens: Tensor, inside: Tensor, values: Tensor, off: float) -> tuple[Tensor, Tensor]:
    """Token ids of the context of T places [M, T, n], and the penalty there [M, T, 1].

    Ids may repeat but all belong to the context, so values computed from an id may be scattered back in any order.
    Only an empty context has ids that do not belong to it, and its penalty is `off`.

    Args:
        tokens: [M, T, n], int64.
        inside: [M, T, n], bool: which of them are in the context.
        values: [M, 1, 1], float32: penalties.
        off: neutral penalty.
    """
    one = inside.int().argmax(-1, keepdim=True)  # stands for what is outside
    ids = torch.where(inside, tokens, tokens.gather(-1, one))
    return ids, torch.where(inside.any(-1, keepdim=True), values, off)


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
