"""Acceptance on the host, for the packed CPU kernels: greedy rows by comparison, sampled rows by the kernels.

The path is chosen per row, independently of the batch. Rows with lenience, details or listed candidates take the
reference on tensors (`engine.backends.tensor_acceptance`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from specchat.engine.backends.tensor_acceptance import TensorAcceptance
from specchat.engine.decoding.outcome import Outcome, tested_candidates
from specchat.engine.decoding.proposal import Proposal
from specchat.engine.decoding.tree import BRANCHES, Tree
from specchat.engine.kernels.sampling import SampledRow, judge
from specchat.engine.sampling.rng import Stream, uniform
from specchat.engine.sampling.text_penalties import Logits, TextPenalties
from specchat.engine.sequence.sequence import SequenceState

LIKELIEST = 8
"""Likeliest tokens that a pass gives for rows with penalties, which may lower some of them."""


class Parts(Sequence[Tensor]):
    """Consecutive parts of a tensor, each sliced when it is asked for: that takes a while next to a short pass.

    Args:
        whole: [sum of counts, ...].
        counts: size of each part.
    """

    def __init__(self, whole: Tensor, counts: Sequence[int]) -> None:
        self._whole, self._ends = whole, [0, *accumulate(counts)]

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, i: Any) -> Any:
        end = self._ends[i + 1]  # IndexError ends an iteration
        return self._whole if len(self) == 1 else self._whole[self._ends[i] : end]


@dataclass(frozen=True, slots=True)
class PackedScores:
    """Scores of a ragged pass, row by row."""

    logits: Sequence[Tensor]
    """[T, V] each, float32; valid until the next pass. Acceptance applies bias and penalties to them."""
    top: list[NDArray[np.int32]]
    """The likeliest tokens after every node [T, k], in order, -1 where logits are not numbers; k may be 0."""
    tapped: Sequence[Tensor] | None
    """Hidden states [T, taps x hidden] each."""


class PackedVerdict:
    """Verdict of a batch on the host.

    Args:
        outcomes: of each row.
        tapped: states of each row's pass, or None.
    """

    def __init__(self, outcomes: list[Outcome], tapped: Sequence[Tensor] | None) -> None:
        self._outcomes, self._tapped = outcomes, tapped

    def outcomes(self) -> list[Outcome]:
        """Outcome of each row."""
        return self._outcomes

    def hidden_states(self) -> Sequence[Tensor] | None:
        """Of each row [T, taps x hidden]: its last token and the accepted tokens come first."""
        if self._tapped is None or not any(outcome.moves for outcome in self._outcomes):
            return self._tapped
        return [_along(states, outcome) for states, outcome in zip(self._tapped, self._outcomes, strict=True)]


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
    outcomes, sampled, special = dict[int, Outcome](), list[int](), list[int]()
    for i, (row, tree) in enumerate(zip(rows, proposal.trees, strict=True)):
        if _is_special(row, tree):
            special.append(i)
            continue
        if row.adjusts:
            if row.slot not in penalties or penalties[row.slot].row is not row:
                penalties[row.slot] = TextPenalties(row)
            if not row.greedy:
                penalties[row.slot].apply(scores.logits[i].numpy(), proposal.on_host[i], tree.parents)
        if row.greedy:
            best = scores.top[i][:, 0].tolist()
            if row.adjusts:
                best = _adjusted(
                    penalties[row.slot], scores.logits[i].numpy(), scores.top[i], proposal.on_host[i], tree.parents
                )
            outcomes[i] = _compare(row, gammas[i], proposal.on_host[i], tree, best)
        else:
            sampled.append(i)
    if sampled:
        outcomes |= zip(sampled, _judge_sampled(sampled, rows, proposal, scores.logits, gammas), strict=True)
    if special:
        logits = pad_sequence([scores.logits[i] for i in special], batch_first=True)
        own = [rows[i] for i in special]
        verdict = reference.judge(own, logits, proposal.only(special), [gammas[i] for i in special])
        outcomes |= zip(special, verdict.outcomes(), strict=True)
    return PackedVerdict([outcomes[i] for i in range(len(rows))], scores.tapped)


def _is_special(row: SequenceState, tree: Tree) -> bool:
    """Whether a row needs the reference."""
    request = row.request
    return request.sampling.lenience < 1 or request.detail > 0 or (tree.tests is not None and not row.greedy)


def _adjusted(
    penalties: TextPenalties, logits: Logits, top: NDArray[np.int32], drafted: Sequence[int], parents: Sequence[int]
) -> list[int]:
    """Apply bias and penalties to a row's logits [T, V]; the likeliest token after each node, -1 where that is NaN.

    Where logits became smaller only, it is one of `top` [T, k], the likeliest before, if it is still above the last of
    those: to search all logits would take long next to a short pass.
    """
    nodes = np.arange(len(logits))[:, None]
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


def _compare(row: SequenceState, gamma: int, drafted: Sequence[int], tree: Tree, best: Sequence[int]) -> Outcome:
    """Outcome of a greedy row: follow the drafted tokens that equal the target's likeliest, `best` [K + 1]."""
    path, end = list[int](), 0
    while node := next((node for node in tree.children[end] if drafted[node - 1] == best[end]), 0):
        path.append(end := node)
    betas = [1.0] * len(path) + [0.0]
    u = partial(uniform, row.seed, row.rounds, Stream.ACCEPT)
    return Outcome(gamma, drafted, tree, path, best[end], min(best) < 0, _certainties(tree, path), u, betas)


def _certainties(tree: Tree, path: Sequence[int]) -> Iterator[tuple[float, float]]:
    """p and q of the tested candidates of a greedy row."""
    for place, count in enumerate(tested_candidates(tree, path)):
        yield from [(0.0, 1.0)] * (count - 1)
        yield float(place < len(path)), 1.0


def _judge_sampled(
    mine: Sequence[int],
    rows: Sequence[SequenceState],
    proposal: Proposal,
    logits: Sequence[Tensor],
    gammas: Sequence[int],
) -> list[Outcome]:
    """Outcomes of the sampled rows `mine`, in their order, by one call of the kernels."""
    draws = [_draws(rows[i], proposal.trees[i]) for i in mine]
    q, drawn, drafted = proposal.q, proposal.drawn, proposal.on_host
    sampled = [
        SampledRow(
            logits=logits[i],
            sampling=rows[i].request.sampling,
            drafted=drafted[i],
            parents=proposal.trees[i].parents,
            q=q[i] if q is not None and drawn and drawn[i] and drafted[i] else None,
            by_overlap=not proposal.trees[i].branches,
            u=u,
            branches=BRANCHES,
            u_last=uniform(rows[i].seed, rows[i].rounds, Stream.LAST, 0),
            seed=rows[i].seed,
            position=len(rows[i].tokens),
        )
        for i, u in zip(mine, draws, strict=True)
    ]
    support = (proposal.support.tokens, proposal.support.places) if proposal.support else None
    verdicts = judge(sampled, logits[mine[0]].shape[-1], support, torch.get_num_threads())
    return [
        Outcome(
            gammas[i],
            drafted[i],
            proposal.trees[i],
            made.path,
            made.last,
            made.last < 0,
            zip(made.p, made.q, strict=True),
            u.__getitem__,
            made.beta,
        )
        for i, made, u in zip(mine, verdicts, draws, strict=True)
    ]


def _draws(row: SequenceState, tree: Tree) -> list[float]:
    """The uniform draws [depth x `BRANCHES`] of a round; 0 where there is no candidate."""
    u = [0.0] * (tree.depth * BRANCHES)
    for index in tree.ranks:
        u[index] = uniform(row.seed, row.rounds, Stream.ACCEPT, index)
    return u


def _along(states: Tensor, outcome: Outcome) -> Tensor:
    """The states of a row's pass [T, n], so that those of its last token and its accepted tokens come first."""
    return torch.from_numpy(states.numpy()[[0, *outcome.path]]) if outcome.moves else states
