"""Verification of rows of a target on the quantised kernels: on the host, by the kernels where rows are sampled.

Which way a row goes depends on itself, not on what rides along. Rows with penalties, a bias, lenience or details, and
sampled ones with merged drafts, go the way of `engine.decoding.verify.verifier`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress

import torch
from torch import Tensor

from specchat.engine.backends.quantized_runner import QuantizedRunner
from specchat.engine.decoding.proposal import Proposal
from specchat.engine.decoding.tree import BRANCHES, Tree, chain
from specchat.engine.decoding.verify.agreement import compare
from specchat.engine.decoding.verify.outcome import Outcome, outcome_of, to_host
from specchat.engine.decoding.verify.verifier import Verifier
from specchat.engine.kernels.sampling import SampledRow, SampledVerdict, judge
from specchat.engine.sampling.rng import Stream, uniforms
from specchat.engine.sequence.sequence import SequenceState


def verify_on_host(
    target: QuantizedRunner,
    rows: Sequence[SequenceState],
    proposal: Proposal,
    gammas: Sequence[int],
    verifier: Verifier,
) -> tuple[list[Outcome], list[Tensor] | None]:
    """Run the target over the drafts of a batch and judge them; accepted branches are kept in the cache.

    Args:
        target: runner of the target model.
        rows: B.
        proposal: their drafts.
        gammas: [B], draft lengths asked for.
        verifier: of the rows that are judged on tensors.

    Returns:
        The outcomes, and the tapped states [1 + accepted, taps x hidden] of each row.
    """
    slots, starts = [row.slot for row in rows], [row.cached for row in rows]
    drafted = proposal.on_host
    trees = proposal.trees or [None] * len(rows)
    fed = [[row.tokens[-1], *tokens] for row, tokens in zip(rows, drafted, strict=True)]
    shapes = [tree or chain(n) for tree, n in zip(trees, proposal.lengths, strict=True)]
    trials = proposal.trials or [None] * len(rows)
    plain = [_is_plain(row) and trial is None for row, trial in zip(rows, trials, strict=True)]
    greedy = [own and row.request.sampling.greedy for row, own in zip(rows, plain, strict=True)]
    seen = target.score(fed, slots, starts, shapes, likeliest=int(any(greedy)))
    outcomes: dict[int, Outcome] = {}
    for i in compress(range(len(rows)), greedy):
        likeliest = [each[0] for each in seen.best[i]]
        outcomes[i] = compare(rows[i], drafted[i], trees[i], likeliest, gammas[i])
    sampled = [i for i, own in enumerate(plain) if own and not greedy[i]]
    outcomes |= zip(sampled, judge_sampled(sampled, rows, proposal, seen.logits, gammas), strict=True)
    for i, outcome in outcomes.items():
        if _turns(outcome):
            target.cache.move(slots[i], [starts[i] + node for node in outcome.path], starts[i] + 1)
    special = [i for i, own in enumerate(plain) if not own]
    if special:
        part = proposal.only(special)
        logits = torch.nn.utils.rnn.pad_sequence([seen.logits[i] for i in special], batch_first=True)
        judged = verifier.judge([rows[i] for i in special], logits, part, [gammas[i] for i in special])
        outcomes |= zip(special, to_host(judged, len(special)), strict=True)
    in_order = [outcomes[i] for i in range(len(rows))]
    states = seen.tapped and [_along(each, outcome) for each, outcome in zip(seen.tapped, in_order, strict=True)]
    return in_order, states


def _is_plain(row: SequenceState) -> bool:
    """Whether logits alone choose the row's tokens, unchanged and without loss, and nobody asks for details."""
    sampling = row.request.sampling
    return sampling.lossless and not sampling.adjusts and not row.request.detail


def judge_sampled(
    mine: Sequence[int],
    rows: Sequence[SequenceState],
    proposal: Proposal,
    logits: Sequence[Tensor],
    gammas: Sequence[int],
) -> list[Outcome]:
    """Outcomes of the sampled rows `mine`, in their order."""
    if not mine:
        return []
    trees = proposal.trees or [None] * len(rows)
    deepest = max((proposal.lengths[i] for i in mine), default=0)
    seeds, numbers = [rows[i].seed for i in mine], [rows[i].rounds for i in mine]
    u = uniforms(seeds, numbers, Stream.ACCEPT, max(deepest, 1) * BRANCHES)
    u_last = uniforms(seeds, numbers, Stream.LAST, 1)[:, 0].tolist()
    drafted = proposal.on_host
    verdicts: dict[int, SampledVerdict] = {}
    found: dict[int, SampledRow] = {}
    drawn = {i for i in mine if trees[i] is not None and i not in proposal.certain}
    for k, i in enumerate(mine):
        tree, length = trees[i], proposal.lengths[i]
        source = proposal.tree_q if i in drawn else proposal.q if tree is None else None
        found[i] = SampledRow(
            logits=logits[i],
            sampling=rows[i].request.sampling,
            drafted=drafted[i],
            parents=(tree or chain(length)).parents,
            q=source[i] if source is not None and length else None,
            by_overlap=tree is None,
            u=u[k].reshape(-1, 1 if tree is None else BRANCHES),
            u_last=u_last[k],
        )
    size, threads, support = logits[mine[0]].shape[-1], torch.get_num_threads(), proposal.support
    for from_support in (False, True):
        part = [i for i in mine if (i in drawn) is from_support]
        if part:
            drawn_from = (support.tokens, support.places) if from_support and support else None
            verdicts |= zip(part, judge([found[i] for i in part], size, drawn_from, threads), strict=True)
    return [_outcome(gammas[i], found[i], trees[i], verdicts[i]) for i in mine]


def _outcome(gamma: int, row: SampledRow, tree: Tree | None, verdict: SampledVerdict) -> Outcome:
    chances = list(zip(verdict.p, verdict.q, strict=True))

    def u(place: int, rank: int) -> float:
        return float(row.u[place, rank])

    broken = verdict.last < 0
    return outcome_of(gamma, row.drafted, tree, verdict.path, chances, u, verdict.beta, verdict.last, broken=broken)


def _along(states: Tensor, outcome: Outcome) -> Tensor:
    """The tapped states of a row's last token and of what was accepted behind it."""
    if not _turns(outcome):
        count = 1 + outcome.accepted
        return states if states.shape[0] == count else states[:count]
    return torch.from_numpy(states.numpy()[[0, *outcome.path]])


def _turns(outcome: Outcome) -> bool:
    """Whether what was accepted does not stand at the beginning of the tree."""
    return bool(outcome.path) and outcome.path[-1] > len(outcome.path)
