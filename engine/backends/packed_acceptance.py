"""Acceptance on the packed CPU kernels, which judge most rows with the pass over them.

The path is chosen per row, independently of the batch. Rows with lenience, details or listed candidates take the
reference on tensors (`engine.backends.tensor_acceptance`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from specchat.engine.backends.tensor_acceptance import TensorAcceptance
from specchat.engine.decoding.outcome import Outcome, tested_candidates
from specchat.engine.decoding.proposal import Proposal
from specchat.engine.decoding.tree import Tree
from specchat.engine.kernels.round import RoundRow, RoundRows, RowVerdict
from specchat.engine.sampling.rng import Stream, uniform
from specchat.engine.sampling.text_penalties import TextPenalties
from specchat.engine.sequence.sequence import SequenceState

LIKELIEST = 8
"""Likeliest tokens that a pass gives for rows with penalties, which may lower some of them."""


@dataclass(frozen=True, slots=True)
class PackedScores:
    """Scores of a ragged pass, and verdicts of the rows that were not held; valid until the next pass."""

    rows: RoundRows
    width: int
    """Of the tapped hidden states; 0 without taps."""

    @property
    def logits(self) -> list[Tensor]:
        """[T, V] of each row, float32. Acceptance applies bias and penalties to them."""
        return [torch.from_numpy(self.rows.logits(i)) for i in range(len(self.rows.rows))]


class RoundStates(Sequence[Tensor]):
    """Tapped hidden states [1 + accepted, taps x hidden] of each row's last token and its accepted tokens, float32;
    valid until the next pass.

    Args:
        rows: of the round.
        width: taps x hidden.
    """

    def __init__(self, rows: RoundRows, width: int) -> None:
        self.rows, self._width = rows, width

    def __len__(self) -> int:
        return len(self.rows.rows)

    def __getitem__(self, i: Any) -> Any:
        first = sum(self.rows.nodes[:i])
        return torch.from_numpy(
            self.rows.tapped(self._width)[[first + node for node in (0, *self.rows.verdict(i).path)]]
        )


class PackedVerdict:
    """Verdict of a batch on the host.

    Args:
        outcomes: of each row.
        scores: what they were judged from.
    """

    def __init__(self, outcomes: list[Outcome], scores: PackedScores) -> None:
        self._outcomes, self._scores = outcomes, scores

    def outcomes(self) -> list[Outcome]:
        """Outcome of each row."""
        return self._outcomes

    def hidden_states(self) -> Sequence[Tensor] | None:
        """Of each row its last token and the accepted tokens, None without taps."""
        return RoundStates(self._scores.rows, self._scores.width) if self._scores.width else None


def round_rows(rows: Sequence[SequenceState], proposal: Proposal) -> list[RoundRow]:
    """The rows of a round for the kernels. Held are those with bias or penalties, and those for the reference."""
    q, drawn, wanted = proposal.q, proposal.drawn, list[RoundRow]()
    for i, (row, drafted, tree) in enumerate(zip(rows, proposal.on_host, proposal.trees, strict=True)):
        wanted.append(
            RoundRow(
                slot=row.slot,
                start=row.cached,
                last_token=row.tokens[-1],
                sampling=None if row.greedy else row.request.sampling,
                seed=row.seed,
                number=row.rounds,
                drafted=drafted,
                parents=tree.parents,
                q=q.data_ptr() + 4 * i * q.stride(0) if q is not None and drawn and drawn[i] and drafted else 0,
                held=row.adjusts or _is_special(row, tree),
            )
        )
    return wanted


def accept_packed(
    rows: Sequence[SequenceState],
    proposal: Proposal,
    scores: PackedScores,
    gammas: Sequence[int],
    reference: TensorAcceptance,
    penalties: dict[int, TextPenalties],
) -> PackedVerdict:
    """Verdict of a batch; arguments as for `Backend.accept`, with the reference for special rows.

    Args:
        penalties: by slot, of rows that had penalties in earlier rounds; those of new ones are added.
    """
    drafts, held, best, special = proposal.on_host, list[int](), list[Sequence[int]](), list[int]()
    for i, (row, tree) in enumerate(zip(rows, proposal.trees, strict=True)):
        if _is_special(row, tree):
            special.append(i)
        elif row.adjusts:
            if row.slot not in penalties or penalties[row.slot].row is not row:
                penalties[row.slot] = TextPenalties(row)
            held.append(i)
            best.append(_adjust(penalties[row.slot], scores.rows, i, drafts[i], tree.parents))
    if held:
        scores.rows.judge(held, best)
    outcomes = {
        i: _outcome(row, gammas[i], drafts[i], proposal.trees[i], scores.rows.verdict(i))
        for i, row in enumerate(rows)
        if i not in special
    }
    if special:
        logits = pad_sequence([scores.logits[i] for i in special], batch_first=True)
        own = [rows[i] for i in special]
        verdict = reference.judge(own, logits, proposal.only(special), [gammas[i] for i in special])
        outcomes |= zip(special, verdict.outcomes(), strict=True)
        for i in special:
            scores.rows.settle(i, outcomes[i].path)
    return PackedVerdict([outcomes[i] for i in range(len(rows))], scores)


def _is_special(row: SequenceState, tree: Tree) -> bool:
    """Whether a row needs the reference."""
    request = row.request
    return request.sampling.lenience < 1 or request.detail > 0 or (tree.tests is not None and not row.greedy)


def _adjust(
    penalties: TextPenalties, rows: RoundRows, i: int, drafted: Sequence[int], parents: Sequence[int]
) -> list[int]:
    """Apply bias and penalties to the logits of row `i`; of a greedy row, the likeliest token after each node, -1 where
    a logit is NaN.

    Where logits became smaller only, it is one of those that were the likeliest before, if it is still above the last
    of them: to search all logits would take long next to a short pass.
    """
    logits = rows.logits(i)
    if not penalties.row.greedy:
        penalties.apply(logits, drafted, parents)
        return []
    nodes, top = np.arange(len(logits))[:, None], rows.best(i)
    floor = logits[nodes, top[:, -1:]]
    penalties.apply(logits, drafted, parents)
    among = logits[nodes, top]
    most = among.max(1, keepdims=True)
    best: list[int] = np.where(among == most, top, logits.shape[1]).min(1).tolist()
    settled = (most > floor) & (top[:, :1] >= 0)
    for node in np.flatnonzero(~settled[:, 0] | penalties.raises).tolist():
        found = int(logits[node].argmax())
        best[node] = found if np.isfinite(logits[node, found]) else -1
    return best


def _outcome(row: SequenceState, gamma: int, drafted: list[int], tree: Tree, made: RowVerdict) -> Outcome:
    """Outcome of a row that the kernels have judged."""
    chances: Iterable[tuple[float, float]] = zip(made.p, made.q, strict=True)
    betas: Sequence[float] = made.beta
    if row.greedy:
        chances, betas = _certainties(tree, made.path), [*[1.0] * len(made.path), 0.0]
    u = partial(uniform, row.seed, row.rounds, Stream.ACCEPT)
    return Outcome(gamma, drafted, tree, made.path, made.last, made.last < 0, chances, u, betas)


def _certainties(tree: Tree, path: Sequence[int]) -> Iterator[tuple[float, float]]:
    """p and q of the tested candidates of a greedy row."""
    for place, count in enumerate(tested_candidates(tree, path)):
        yield from [(0.0, 1.0)] * (count - 1)
        yield float(place < len(path)), 1.0
