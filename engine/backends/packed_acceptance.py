"""Acceptance on the packed CPU kernels, which judge most rows with the pass over them.

The path is chosen per row, independently of the batch. Rows with lenience, details or listed candidates take the
reference on tensors (`engine.backends.tensor_acceptance`).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from specchat.engine.backends.tensor_acceptance import TensorAcceptance
from specchat.engine.decoding.backend import VerifiedRound
from specchat.engine.decoding.outcome import Outcome, tested_candidates
from specchat.engine.decoding.proposal import Proposal
from specchat.engine.decoding.tree import Tree
from specchat.engine.kernels.round import RoundRow, RoundRows
from specchat.engine.kernels.row_penalties import RowPenalties, break_flags
from specchat.engine.sampling.rng import Stream, uniform
from specchat.engine.sequence.sequence import SequenceState


@dataclass(frozen=True, slots=True)
class PackedScores:
    """Scores of a ragged pass, and verdicts of the rows that were not held; valid until the next pass."""

    rows: RoundRows
    width: int
    """Of the tapped hidden states; 0 without taps."""
    earlier: Sequence[tuple[Proposal, RoundRows]] = ()
    """Rounds that were run before this one."""

    @property
    def logits(self) -> list[Tensor]:
        """[T, V] of each row, float32; of rows that were judged, with bias and penalties."""
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
        earlier: rounds that were run before.
    """

    def __init__(self, outcomes: list[Outcome], scores: PackedScores, earlier: Sequence[VerifiedRound] = ()) -> None:
        self._outcomes, self._scores, self.earlier = outcomes, scores, earlier

    def moves(self) -> Iterator[tuple[int, list[int], int]]:
        """Slots, columns of accepted tokens that are to be moved, and where to."""
        for row, outcome in zip(self._scores.rows.rows, self._outcomes, strict=True):
            if outcome.moves:
                yield row.slot, [row.start + node for node in outcome.path], row.start + 1

    def outcomes(self) -> list[Outcome]:
        """Outcome of each row."""
        return self._outcomes

    def hidden_states(self) -> Sequence[Tensor] | None:
        """Of each row its last token and the accepted tokens, None without taps."""
        return RoundStates(self._scores.rows, self._scores.width) if self._scores.width else None


class PenaltiesOfRows:
    """Bias and penalties of running rows, by slot; created when a row starts.

    Args:
        vocabulary: V.
    """

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        self._known: dict[int, RowPenalties] = {}
        self._breaks: dict[tuple[str, ...], array[int]] = {}

    def of(self, row: SequenceState) -> RowPenalties:
        """Bias and penalties of a row."""
        known = self._known.get(row.slot)
        if known is None or known.tokens is not row.tokens:
            sampling, texts = row.request.sampling, row.request.sampling.dry_sequence_breakers
            if sampling.dry and texts not in self._breaks:
                self._breaks[texts] = break_flags(texts, row.text.names(self._vocabulary))
            known = RowPenalties(sampling, row.tokens, row.reply_begin, self._breaks.get(texts))
            self._known[row.slot] = known
        return known


def round_rows(rows: Sequence[SequenceState], proposal: Proposal, penalties: PenaltiesOfRows) -> list[RoundRow]:
    """The rows of a round for the kernels; rows that the reference judges are held."""
    q, drawn, wanted = proposal.q, proposal.drawn, list[RoundRow]()
    for i, (row, drafted, tree) in enumerate(zip(rows, proposal.on_host, proposal.trees, strict=True)):
        special = _is_special(row, tree)
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
                q=q.data_ptr() + 4 * i * q.stride(0)
                if q is not None and drawn and drawn[i] and row.draws and drafted
                else 0,
                penalties=penalties.of(row).c() if row.adjusts and not special else None,
                held=special,
                left=row.left,
            )
        )
    return wanted


def accept_packed(
    rows: Sequence[SequenceState],
    proposal: Proposal,
    scores: PackedScores,
    gammas: Sequence[int],
    reference: TensorAcceptance,
) -> PackedVerdict:
    """Verdict of a batch; arguments as for `Backend.accept`, with the reference for special rows."""
    memory, everyone = scores.rows, range(len(rows))
    special = [i for i, (row, tree) in enumerate(zip(rows, proposal.trees, strict=True)) if _is_special(row, tree)]
    outcomes = _outcomes(rows, proposal, memory, gammas, [i for i in everyone if i not in special])
    if special:
        logits = pad_sequence([scores.logits[i] for i in special], batch_first=True)
        own = [rows[i] for i in special]
        verdict = reference.judge(own, logits, proposal.only(special), [gammas[i] for i in special])
        outcomes |= zip(special, verdict.outcomes(), strict=True)
        for i in special:
            memory.settle(i, outcomes[i].path)
    earlier = [
        VerifiedRound(each, [*_outcomes(rows, each, made, gammas, everyone).values()], made.c.seconds)
        for each, made in scores.earlier
    ]
    return PackedVerdict([outcomes[i] for i in everyone], scores, earlier)


def _is_special(row: SequenceState, tree: Tree) -> bool:
    """Whether a row needs the reference."""
    request = row.request
    return request.sampling.lenience < 1 or request.detail > 0 or (tree.tests is not None and row.draws)


def _outcomes(
    rows: Sequence[SequenceState], proposal: Proposal, judged: RoundRows, gammas: Sequence[int], mine: Iterable[int]
) -> dict[int, Outcome]:
    """Outcomes of those rows that the kernels have judged, by number."""
    drafts = proposal.on_host
    return {i: _outcome(rows[i], gammas[i], drafts[i], proposal.trees[i], judged, i) for i in mine}


def _outcome(row: SequenceState, gamma: int, drafted: list[int], tree: Tree, judged: RoundRows, i: int) -> Outcome:
    """Outcome of the i-th row, which the kernels have judged."""
    made, number = judged.verdict(i), judged.rows[i].number
    if number > row.rounds:  # a later round has less room
        gamma = min(gamma, judged.rows[i].left - 1)
    gamma = max(gamma, tree.depth)  # what costs no draft step is drafted beyond it
    chances: Iterable[tuple[float, float]] = zip(made.p, made.q, strict=True)
    betas: Sequence[float] = made.beta
    if row.greedy:
        chances, betas = _certainties(tree, made.path), [*[1.0] * len(made.path), 0.0]
    u = partial(uniform, row.seed, number, Stream.ACCEPT)
    certain = not judged.rows[i].q
    return Outcome(gamma, drafted, tree, made.path, made.last, made.last < 0, chances, u, betas, certain)


def _certainties(tree: Tree, path: Sequence[int]) -> Iterator[tuple[float, float]]:
    """p and q of the tested candidates of a greedy row."""
    for place, count in enumerate(tested_candidates(tree, path)):
        yield from [(0.0, 1.0)] * (count - 1)
        yield float(place < len(path)), 1.0
