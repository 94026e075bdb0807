"""Drafters of counted tables (Leviathan et al. 2023, section 3.6): approximation models of negligible cost.

Their q are true distributions: a sampled row's tokens are drawn from its counts, standardised as p is.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from specchat.engine.decoding.backend import Backend
from specchat.engine.decoding.drafter import Drafter
from specchat.engine.decoding.gamma.budget import Budget
from specchat.engine.decoding.proposal import Draft
from specchat.engine.decoding.tree import chain
from specchat.engine.drafters.model_steps import ModelSteps
from specchat.engine.drafters.tables.counts import Counts
from specchat.engine.drafters.tables.networks import BigramNetwork, UnigramNetwork
from specchat.engine.sampling.penalties import Penalties
from specchat.engine.sampling.rng import Stream, uniforms
from specchat.engine.sequence.sequence import SequenceState


class TableDrafter(Drafter):
    """Drafts token by token what a table has behind the last one.

    Args:
        name: of the drafter.
        network: the table.
        penalties: shared with the target, so that p and q know the same context.
        vocabulary: V, the size of the target's distributions.
        ends: tokens behind which a greedy row drafts nothing: the reply would be over.
    """

    def __init__(
        self,
        name: str,
        network: BigramNetwork | UnigramNetwork,
        penalties: Penalties,
        vocabulary: int,
        ends: Collection[int],
    ) -> None:
        self.name = name
        self.bytes = network.bytes
        """Memory of the table."""
        self._likeliest = network.likeliest
        self._steps = ModelSteps(network, penalties, vocabulary)
        self._ends = ends

    def propose(
        self,
        rows: Sequence[SequenceState],
        gammas: Sequence[int],
        budgets: Sequence[Budget | None] = (),  # noqa: ARG002
    ) -> Draft:
        """Chains: the likeliest tokens where all rows are greedy and plain, else drawn, with their distributions."""
        plain = not any(row.request.sampling.adjusts for row in rows)
        if plain and all(row.request.sampling.greedy for row in rows):
            chains = [self._chain(row.tokens[-1], gamma) for row, gamma in zip(rows, gammas, strict=True)]
            return Draft.of_chains(chains)
        steps = max(gammas)
        u = uniforms([row.seed for row in rows], [row.rounds for row in rows], Stream.DRAFT, steps)
        tokens, q = self._steps.draft(rows, 1, steps, u)
        return Draft(tokens, [chain(gamma) for gamma in gammas], q)

    def _chain(self, token: int, count: int) -> list[int]:
        """Up to `count` tokens, each the likeliest behind the one before."""
        chain: list[int] = []
        while len(chain) < count and token not in self._ends:
            token = self._likeliest[token]
            chain.append(token)
        return chain


def table_drafters(
    counts: Counts, penalties: Penalties, vocabulary: int, target: Backend, ends: Collection[int]
) -> tuple[TableDrafter, TableDrafter]:
    """The drafters bigram and unigram."""
    networks: tuple[BigramNetwork | UnigramNetwork, ...] = (
        BigramNetwork(counts, vocabulary, target.device),
        UnigramNetwork(counts, vocabulary, target.device),
    )
    bigram, unigram = (
        TableDrafter(name, network, penalties, vocabulary, ends)
        for name, network in zip(("bigram", "unigram"), networks, strict=True)
    )
    return bigram, unigram
