"""Acceptance on the host, for the packed CPU kernels: greedy rows by comparison, sampled rows by the kernels.

The path is chosen per row, independently of the batch. Rows with penalties, a bias, lenience, details or listed
candidates take the reference on tensors (`engine.backends.tensor_acceptance`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specchat.engine.backends.tensor_acceptance import TensorAcceptance
from specchat.engine.decoding.outcome import Outcome, outcome_of
from specchat.engine.decoding.proposal import Proposal
from specchat.engine.decoding.tree import BRANCHES, Tree
from specchat.engine.kernels.sampling import SampledRow, judge
from specchat.engine.sampling.rng import Stream, uniform, uniforms
from specchat.engine.sequence.sequence import SequenceState


@dataclass(frozen=True, slots=True)
class PackedScores:
    """Scores of a ragged pass, row by row."""

    logits: list[Tensor]
    """[T, V] each, float32; valid until the next pass."""
    best: list[list[int]]
    """The likeliest token after every node, -1 where logits are not numbers; empty if no row is greedy."""
    tapped: list[Tensor] | None
    """Hidden states [T, taps x hidden] each."""


class PackedVerdict:
    """Verdict of a batch on the host.

    Args:
        outcomes: of each row.
        tapped: states of each row's pass, or None.
    """

    def __init__(self, outcomes: list[Outcome], tapped: list[Tensor] | None) -> None:
        self._outcomes, self._tapped = outcomes, tapped

    def outcomes(self) -> list[Outcome]:
        """Outcome of each row."""
        return self._outcomes

    def hidden_states(self) -> list[Tensor] | None:
        """[1 + accepted, taps x hidden] of each row's last token and the accepted tokens."""
        if self._tapped is None:
            return None
        return [_along(states, outcome) for states, outcome in zip(self._tapped, self._outcomes, strict=True)]


def accept_packed(
    rows: Sequence[SequenceState],
    proposal: Proposal,
    scores: PackedScores,
    gammas: Sequence[int],
    reference: TensorAcceptance,
) -> PackedVerdict:
    """Verdict of a batch; arguments as for `Backend.accept`, with the reference for special rows."""
    greedy, sampled, special = list[int](), list[int](), list[int]()
    for i, row in enumerate(rows):
        kind = special if _is_special(row, proposal.trees[i]) else greedy if row.request.sampling.greedy else sampled
        kind.append(i)
    outcomes: dict[int, Outcome] = {}
    drafted = proposal.on_host
    for i in greedy:
        outcomes[i] = _compare(rows[i], drafted[i], proposal.trees[i], scores.best[i], gammas[i])
    if sampled:
        outcomes |= zip(sampled, _judge_sampled(sampled, rows, proposal, scores.logits, gammas), strict=True)
    if special:
        logits = torch.nn.utils.rnn.pad_sequence([scores.logits[i] for i in special], batch_first=True)
        own = [rows[i] for i in special]
        verdict = reference.judge(own, logits, proposal.only(special), [gammas[i] for i in special])
        outcomes |= zip(special, verdict.outcomes(), strict=True)
    return PackedVerdict([outcomes[i] for i in range(len(rows))], scores.tapped)


def _is_special(row: SequenceState, tree: Tree) -> bool:
    """Whether a row needs the reference."""
    sampling = row.request.sampling
    listed = tree.tests is not None and not sampling.greedy
    return not sampling.lossless or sampling.adjusts or bool(row.request.detail) or listed


def _compare(row: SequenceState, drafted: Sequence[int], tree: Tree, best: Sequence[int], gamma: int) -> Outcome:
    """Outcome of a greedy row: follow the drafted tokens that equal the target's likeliest, `best` [K + 1]."""
    path, chances, beta, end = list[int](), list[tuple[float, float]](), list[float](), 0
    while nodes := tree.children[end]:
        equal = [drafted[node - 1] == best[end] for node in nodes]
        tested = equal.index(True) + 1 if any(equal) else len(equal)
        chances += [(float(each), 1.0) for each in equal[:tested]]
        beta.append(float(any(equal)))
        if not any(equal):
            break
        end = nodes[tested - 1]
        path.append(end)

    def u(place: int, rank: int) -> float:
        return uniform(row.seed, row.rounds, Stream.ACCEPT, place * BRANCHES + rank)

    return outcome_of(gamma, drafted, tree, path, chances, u, beta, best[end], broken=min(best) < 0)


def _judge_sampled(
    mine: Sequence[int],
    rows: Sequence[SequenceState],
    proposal: Proposal,
    logits: Sequence[Tensor],
    gammas: Sequence[int],
) -> list[Outcome]:
    """Outcomes of the sampled rows `mine`, in their order, by one call of the kernels."""
    deepest = max(proposal.lengths[i] for i in mine)
    seeds, rounds = [rows[i].seed for i in mine], [rows[i].rounds for i in mine]
    u = uniforms(seeds, rounds, Stream.ACCEPT, max(deepest, 1) * BRANCHES).reshape(len(mine), -1, BRANCHES)
    u_last = uniforms(seeds, rounds, Stream.LAST, 1)[:, 0].tolist()
    drafted, sampled = proposal.on_host, list[SampledRow]()
    for k, i in enumerate(mine):
        drawn = proposal.q is not None and proposal.drawn is not None and proposal.drawn[i]
        sampled.append(
            SampledRow(
                logits=logits[i],
                sampling=rows[i].request.sampling,
                drafted=drafted[i],
                parents=proposal.trees[i].parents,
                q=proposal.q[i] if drawn and proposal.q is not None and drafted[i] else None,
                by_overlap=not proposal.trees[i].branches,
                u=u[k],
                u_last=u_last[k],
            )
        )
    support = (proposal.support.tokens, proposal.support.places) if proposal.support else None
    verdicts = judge(sampled, logits[mine[0]].shape[-1], support, torch.get_num_threads())
    outcomes = []
    for i, row, verdict in zip(mine, sampled, verdicts, strict=True):

        def uniform_of(place: int, rank: int, own: SampledRow = row) -> float:
            return float(own.u[place, rank])

        chances, broken = zip(verdict.p, verdict.q, strict=True), verdict.last < 0
        outcomes.append(
            outcome_of(
                gammas[i],
                row.drafted,
                proposal.trees[i],
                verdict.path,
                chances,
                uniform_of,
                verdict.beta,
                verdict.last,
                broken=broken,
            )
        )
    return outcomes


def _along(states: Tensor, outcome: Outcome) -> Tensor:
    """States [1 + accepted, n] of a row's last token and its accepted tokens, from those of its pass [T, n]."""
    if not outcome.moves:
        count = 1 + outcome.accepted
        return states if states.shape[0] == count else states[:count]
    return torch.from_numpy(states.numpy()[[0, *outcome.path]])
