"""Acceptance on the host, for the packed CPU kernels: greedy rows by comparison, sampled rows by the kernels.

The path is chosen per row, independently of the batch. Rows with lenience, details or listed candidates take the
reference on tensors (`engine.backends.tensor_acceptance`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from specchat.engine.backends.tensor_acceptance import TensorAcceptance
from specchat.engine.decoding.outcome import Outcome, outcome_of
from specchat.engine.decoding.proposal import Proposal
from specchat.engine.decoding.tree import BRANCHES, Tree
from specchat.engine.kernels.sampling import SampledRow, SampledVerdict, judge
from specchat.engine.sampling.rng import Stream, uniform, uniforms
from specchat.engine.sequence.sequence import SequenceState


@dataclass(frozen=True, slots=True)
class PackedScores:
    """Scores of a ragged pass, row by row."""

    logits: list[Tensor]
    """[T, V] each, float32; valid until the next pass. Acceptance applies bias and penalties to them."""
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
    drafted, trees = proposal.on_host, proposal.trees
    if adjusting := [i for i in (*greedy, *sampled) if rows[i].request.sampling.adjusts]:
        _adjust(adjusting, rows, proposal, scores, reference)
    verdicts = {i: _compare(drafted[i], trees[i], scores.best[i]) for i in greedy}
    if sampled:
        verdicts |= zip(sampled, _judge_sampled(sampled, rows, proposal, scores.logits), strict=True)
    outcomes = {
        i: outcome_of(
            gammas[i],
            drafted[i],
            trees[i],
            made.path,
            zip(made.p, made.q, strict=True),
            partial(_uniform, rows[i]),
            made.beta,
            made.last,
            broken=made.last < 0,
        )
        for i, made in verdicts.items()
    }
    if special:
        logits = pad_sequence([scores.logits[i] for i in special], batch_first=True)
        own = [rows[i] for i in special]
        verdict = reference.judge(own, logits, proposal.only(special), [gammas[i] for i in special])
        outcomes |= zip(special, verdict.outcomes(), strict=True)
    return PackedVerdict([outcomes[i] for i in range(len(rows))], scores.tapped)


def _is_special(row: SequenceState, tree: Tree) -> bool:
    """Whether a row needs the reference."""
    sampling = row.request.sampling
    listed = tree.tests is not None and not sampling.greedy
    return not sampling.lossless or bool(row.request.detail) or listed


def _adjust(
    mine: Sequence[int],
    rows: Sequence[SequenceState],
    proposal: Proposal,
    scores: PackedScores,
    reference: TensorAcceptance,
) -> None:
    """Apply the bias and penalties of the rows `mine` to their scores.

    By numpy as far as it concerns the whole vocabulary: torch's threads would hinder those of the kernels.
    """
    for i in mine:
        logits = scores.logits[i]
        reference.adjust(rows[i], logits, proposal.on_host[i], proposal.trees[i])
        if rows[i].request.sampling.greedy:
            values = logits.numpy()
            best = values.argmax(-1)
            finite = np.isfinite(np.take_along_axis(values, best[:, None], -1)[:, 0])
            scores.best[i] = np.where(finite, best, -1).tolist()


def _compare(drafted: Sequence[int], tree: Tree, best: Sequence[int]) -> SampledVerdict:
    """Verdict of a greedy row: follow the drafted tokens that equal the target's likeliest, `best` [K + 1]."""
    path, p, beta, end = list[int](), list[float](), list[float](), 0
    while nodes := tree.children[end]:
        equal = [drafted[node - 1] == best[end] for node in nodes]
        tested = equal.index(True) + 1 if any(equal) else len(equal)
        p += map(float, equal[:tested])
        beta.append(float(any(equal)))
        if not any(equal):
            break
        end = nodes[tested - 1]
        path.append(end)
    return SampledVerdict(path, best[end] if min(best) >= 0 else -1, p, [1.0] * len(p), beta)


def _uniform(row: SequenceState, place: int, rank: int) -> float:
    """The uniform of a position and a candidate's rank in a row's round."""
    return uniform(row.seed, row.rounds, Stream.ACCEPT, place * BRANCHES + rank)


def _judge_sampled(
    mine: Sequence[int],
    rows: Sequence[SequenceState],
    proposal: Proposal,
    logits: Sequence[Tensor],
) -> list[SampledVerdict]:
    """Verdicts of the sampled rows `mine`, in their order, by one call of the kernels."""
    seeds, rounds = [rows[i].seed for i in mine], [rows[i].rounds for i in mine]
    u = uniforms(seeds, rounds, Stream.ACCEPT, max(proposal.lengths) * BRANCHES).reshape(len(mine), -1, BRANCHES)
    q, drawn, drafted = proposal.q, proposal.drawn, proposal.on_host
    sampled = [
        SampledRow(
            logits=logits[i],
            sampling=rows[i].request.sampling,
            drafted=drafted[i],
            parents=proposal.trees[i].parents,
            q=q[i] if q is not None and drawn and drawn[i] and drafted[i] else None,
            by_overlap=not proposal.trees[i].branches,
            u=own,
            u_last=uniform(rows[i].seed, rows[i].rounds, Stream.LAST, 0),
            seed=rows[i].seed,
            position=len(rows[i].tokens),
        )
        for i, own in zip(mine, u, strict=True)
    ]
    support = (proposal.support.tokens, proposal.support.places) if proposal.support else None
    return judge(sampled, logits[mine[0]].shape[-1], support, torch.get_num_threads())


def _along(states: Tensor, outcome: Outcome) -> Tensor:
    """States [1 + accepted, n] of a row's last token and its accepted tokens, from those of its pass [T, n]."""
    if not outcome.moves:
        count = 1 + outcome.accepted
        return states if states.shape[0] == count else states[:count]
    return torch.from_numpy(states.numpy()[[0, *outcome.path]])
