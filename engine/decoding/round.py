"""Rounds of speculative decoding: draft, score, accept, keep.

The target's cache holds every token of a row but the last. A round feeds that token and the drafted tokens in one pass;
the logits after each node verify its candidates, and the logits after the last accepted node give the correction or
bonus (Leviathan et al. 2023, Algorithm 1). Rolling back leaves `SequenceState.cached` at the last accepted token.

Where passes are short, a runner may run several rounds in one call (multi-step scheduling in vLLM): a pass evicts the
host's code and data from the processor's caches, so that work between two passes takes longer than it does once again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, NamedTuple, TypeVar

from specchat.engine.decoding.backend import Backend
from specchat.engine.decoding.draft import Draft, RowOrder
from specchat.engine.decoding.drafter import RowDrafters
from specchat.engine.decoding.tree import BRANCHES, Tree
from specchat.engine.sequence.sequence import SequenceState

Target = TypeVar("Target", bound=Backend)
Trim = Callable[[Sequence[RowOrder], Sequence[Draft], int], list[Draft]]
"""Shortens drafts to what is worth its verification; the number is the size of the batch."""


Offer = tuple[int, float, float, float]
"""A tested token with its p, q and u."""


class Tests(NamedTuple):
    """Tested tokens of a draft, by position."""

    drafted: list[int]
    """One token per position: the accepted ones, then the first candidates after them."""
    p: list[float]
    q: list[float]
    u: list[float]
    beta: list[float]
    refused: list[list[Offer]]
    """Other rejected tokens per tested position, for a tree."""


@dataclass
class Outcome:
    """Outcome of a round for one row. The next round needs only what was accepted; the record needs `tests` too.

    Args:
        requested: draft length.
        tokens: [K], the draft.
        tree: layout of the K tokens.
        path: nodes of the accepted tokens.
        last: correction, bonus or plain token.
        broken: the target's logits were not finite; the other fields are then undefined.
        chances: p(x) and q(x) of every tested candidate, in order (`tested_candidates`).
        u: the uniform of the candidate of rank r at position i, by i · `BRANCHES` + r.
        betas: per tested position.
        certain: the draft was not drawn. Its tokens were accepted where they are the target's own; the record's u is a
            number with the same verdict.
        detail: per position, what `engine.decoding.top_logprobs` packed; empty unless the request asks for it.
    """

    requested: int
    tokens: Sequence[int]
    tree: Tree
    path: list[int]
    last: int
    broken: bool
    chances: Iterable[tuple[float, float]]
    u: Callable[[int], float]
    betas: Sequence[float]
    certain: bool = False
    detail: Sequence[list[int]] = ()

    @property
    def gamma(self) -> int:
        """Requested draft length; of a tree its depth."""
        return self.tree.depth if self.tree.branches else self.requested

    @property
    def accepted(self) -> int:
        """Number of accepted tokens."""
        return len(self.path)

    @property
    def offered(self) -> int:
        """Number of drafted tokens of a tree; 0 for a chain."""
        return len(self.tree) if self.tree.branches else 0

    @property
    def steps(self) -> int:
        """Number of drafted positions, as `Round.steps`."""
        return self.tree.depth

    @property
    def emitted(self) -> list[int]:
        """The accepted tokens and the last one."""
        return [*(self.tokens[node - 1] for node in self.path), self.last]

    @property
    def moves(self) -> bool:
        """Whether the accepted tokens are not the first ones of the draft, so that their cache columns move."""
        return bool(self.path) and self.path[-1] > len(self.path)

    @cached_property
    def tests(self) -> Tests:
        """Tested tokens."""
        tokens, tree, path = self.tokens, self.tree, self.path
        left = iter(self.chances)
        decided: list[Offer] = []
        refused: list[list[Offer]] = []
        for place, count in enumerate(tested_candidates(tree, path)):
            first, candidates = place * BRANCHES, tree.candidates[path[place - 1] if place else 0][:count]
            kept = count - 1 if place < len(path) else -1
            offers: list[Offer] = []
            for rank, each in enumerate(candidates):
                p, q = next(left)
                u = self.u(first + rank)
                if self.certain:
                    u = u * p if rank == kept else p + u * (1 - p)
                offers.append((tokens[each.node - 1], p, q, u))
            decisive = max(kept, 0)
            decided.append(offers[decisive])
            # q = 0 marks a candidate for which the drafter had no token left.
            refused.append([offer for i, offer in enumerate(offers) if i != decisive and offer[2] > 0])
        rest: list[int] = []
        if len(decided) > len(path):
            rest = tree.first_branch(tree.candidates[path[-1] if path else 0][0].node)
        p_of, q_of, u_of = ([offer[i] for offer in decided] for i in (1, 2, 3))
        drafted = [tokens[node - 1] for node in (*path, *rest)]
        return Tests(drafted, p_of, q_of, u_of, list(self.betas[: len(decided)]), refused if tree.branches else [])


def tested_candidates(tree: Tree, path: Sequence[int]) -> list[int]:
    """Number of candidates tested per position: up to the accepted one, or all of them."""
    counts = []
    for place, node in enumerate((0, *path)):
        nodes = [candidate.node for candidate in tree.candidates[node]]
        if nodes:
            counts.append(nodes.index(path[place]) + 1 if place < len(path) else len(nodes))
    return counts


class RoundOutcome(NamedTuple):
    """Drafts, outcomes and times of a round."""

    drafts: Sequence[Draft]
    """[B], each with the drafter's fault, if it had one."""
    outcomes: Sequence[Outcome]
    """[B]"""
    draft_s: float
    """Seconds of drafting."""
    verify_s: float
    """Seconds of the target's pass and of acceptance."""

    @property
    def steps(self) -> int:
        """Draft steps of the round."""
        return max(draft.steps for draft in self.drafts)

    @property
    def drafted(self) -> bool:
        """Whether any row had a draft."""
        return any(len(draft.tree) for draft in self.drafts)


def begin_masks(rows: Sequence[SequenceState], drafts: Sequence[Draft]) -> None:
    """Begin to compute the masks of constrained rows in other threads, during the target's pass."""
    for row, draft in zip(rows, drafts, strict=True):
        if row.constraint:
            row.constraint.ask(row.tokens, draft.on_host, draft.tree.children)


class Runner(ABC, Generic[Target]):
    """Runs the rounds of one target.

    Args:
        target: verifies.
        drafters: of the rows.
        trim: shortens drafts that were made on the host.
        on_launch: called once per `run`, when a device that computes by itself has all of the work.
    """

    def __init__(
        self, target: Target, drafters: RowDrafters, trim: Trim, on_launch: Callable[[], object] = lambda: None
    ) -> None:
        self._target, self._drafters, self._trim, self._on_launch = target, drafters, trim, on_launch

    @abstractmethod
    def run(self, orders: Sequence[RowOrder], max_rounds: int = 1, ends: Collection[int] = ()) -> list[RoundOutcome]:
        """Run one round for rows that are prefilled, or several, one after the other.

        Args:
            orders: [B], the rows and what may be drafted for each.
            max_rounds: maximum number of rounds, for which the cache has blocks; they draft as the first does.
            ends: tokens that end a reply, and with it those rounds.
        """

    @abstractmethod
    def plain_pass(self, rows: Sequence[SequenceState]) -> None:
        """Score and accept without drafts, and keep nothing."""
