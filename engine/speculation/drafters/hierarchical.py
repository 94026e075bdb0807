"""Hierarchical drafter: a draft model that is itself sped up, by the text (Leviathan et al. 2023, section 6).

The suffix drafter proposes what the draft model verifies in one pass, by speculative sampling (Algorithm 1 there, q
one-hot). What comes out is distributed as the draft model's own text, so the target judges it by the draft model's q. A
draft step costs less by as many tokens as a pass of the draft model accepts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specchat.engine.request import MAX_GAMMA
from specchat.engine.runner.runner import Runner
from specchat.engine.runner.to_device import to_device
from specchat.engine.sampling.penalties import Penalties
from specchat.engine.sampling.rng import Stream, uniforms
from specchat.engine.sampling.sampler import draw, most_likely, standardise
from specchat.engine.sampling.sampling_rows import SamplingRows
from specchat.engine.sequence.sequence import SequenceState
from specchat.engine.speculation.drafters.base import Drafter
from specchat.engine.speculation.drafters.draft_cache import DraftCache
from specchat.engine.speculation.drafters.model_steps import ModelSteps
from specchat.engine.speculation.drafters.suffix import SuffixDrafter
from specchat.engine.speculation.gamma.budget import Budget
from specchat.engine.speculation.proposal import Draft


@dataclass(slots=True)
class _Chain:
    """One row's draft while it is made."""

    row: SequenceState
    length: int
    """Tokens that are wanted."""
    unfed: int
    """Tokens at the end of the text that the draft model has not read, drafted ones included."""
    u: list[float]
    """[2 x `MAX_GAMMA`]: uniforms that judge the token of each position, then those that draw it."""
    tokens: list[int] = field(default_factory=list)
    q: list[Tensor] = field(default_factory=list)
    """[V] each, what the tokens were drawn from; none of a greedy row."""

    def take(self, logits: Tensor, proposed: Sequence[int]) -> None:
        """Judge proposed tokens by the draft model's logits [n + 1, V] before and behind each, and draw one more."""
        sampling = self.row.request.sampling
        if sampling.greedy:
            best = most_likely(logits).tolist()
            agreed = next((i for i, (a, b) in enumerate(zip(proposed, best, strict=False)) if a != b), len(proposed))
            self.tokens += best[: agreed + 1]
            self.unfed = 1
            return
        q = standardise(logits[None], SamplingRows.of([sampling], logits.device))[0]
        self.unfed = 1
        for place in range(len(proposed) + 1):
            weights, position = q[place], len(self.tokens)
            self.q.append(weights)
            if place < len(proposed):
                token = proposed[place]
                if self.u[position] < weights[token].item():
                    self.tokens.append(token)
                    continue
                weights = weights.index_fill(0, torch.tensor([token]), 0.0)
            u = torch.tensor([self.u[MAX_GAMMA + position]], dtype=torch.float64)
            self.tokens.append(int(draw(weights[None], u)))
            return


class HierarchicalDrafter(Drafter):
    """A draft model on a CPU whose chains the suffix drafter drafts.

    Args:
        model: the draft model, with as many slots and columns as the target.
        cache: what it holds of every row.
        steps: its draft steps.
        penalties: shared with the target, so that p and q know the same context.
        suffix: drafts for it.
    """

    name = "hierarchical"

    def __init__(
        self, model: Runner, cache: DraftCache, steps: ModelSteps, penalties: Penalties, suffix: SuffixDrafter
    ) -> None:
        self._model = model
        self._cache = cache
        self._steps = steps
        self._penalties = penalties
        self._suffix = suffix
        self._drafted: dict[str, int] = {}
        """By request: tokens of the draft under judgement."""

    def admit(self, row: SequenceState) -> None:
        """A row starts with both."""
        self._cache.admit(row)
        self._suffix.admit(row)

    def unread(self, row: SequenceState) -> int:
        """What either of them lacks."""
        return self._cache.unread(row) + self._suffix.unread(row)

    def read(self, rows: Sequence[SequenceState]) -> None:
        """A chunk for the text, then for the draft model."""
        if self._suffix.unread(rows[0]):
            self._suffix.read(rows)
        else:
            self._cache.read([row for row in rows if self._cache.unread(row)])

    @torch.inference_mode()
    def propose(
        self,
        rows: Sequence[SequenceState],
        gammas: Sequence[int],
        budgets: Sequence[Budget | None] = (),  # noqa: ARG002
    ) -> Draft:
        """`gammas[i]` tokens of each row."""
        lead = self._cache.catch_up(rows)
        u = uniforms([row.seed for row in rows], [row.rounds for row in rows], Stream.DRAFT, 2 * MAX_GAMMA).tolist()
        chains = [_Chain(*each) for each in zip(rows, gammas, [lead] * len(rows), u, strict=True)]
        while open_ones := [each for each in chains if len(each.tokens) < each.length]:
            self._step(open_ones)
        for each in chains:
            self._drafted[each.row.request.request_id] = each.length
        return Draft([each.tokens for each in chains], list(gammas), self._distributions(chains))

    def observe(self, row: SequenceState, emitted: Sequence[int]) -> None:
        """Keep what was accepted; the last drafted token was never fed."""
        self._suffix.observe(row, emitted)
        drafted = self._drafted.pop(row.request.request_id, 0)
        if drafted:
            self._cache.keep(row, len(row.tokens) - len(emitted) + min(len(emitted), drafted) - 1)

    def release(self, row: SequenceState) -> None:
        """From both."""
        self._drafted.pop(row.request.request_id, None)
        self._cache.release(row)
        self._suffix.release(row)

    def _step(self, chains: Sequence[_Chain]) -> None:
        """One pass of the draft model over what is proposed to it."""
        proposed = [
            self._suffix.continue_behind(each.row, each.tokens, each.length - len(each.tokens) - 1) for each in chains
        ]
        fed = [
            [*each.row.tokens[-each.unfed :], *each.tokens][-each.unfed :] + more
            for each, more in zip(chains, proposed, strict=True)
        ]
        starts = [len(each.row.tokens) + len(each.tokens) - each.unfed for each in chains]
        lengths = [len(tokens) for tokens in fed]
        padded = to_device([tokens + [0] * (max(lengths) - len(tokens)) for tokens in fed], self._model.device)
        slots = [each.row.slot for each in chains]
        logits = self._steps.fit(self._model.forward_tapped(padded, slots, starts, None, lengths)[0])
        for each, seen, more, length in zip(chains, logits, proposed, lengths, strict=True):
            judged = seen[each.unfed - 1 : length]
            adjustment = self._penalties.of([each.row])
            if adjustment is not None:
                drafted = to_device([[*each.tokens, *more]], judged.device, torch.long)
                judged = adjustment.apply(judged[None], drafted, first=len(each.tokens))[0]
            each.take(judged, more)

    def _distributions(self, chains: Sequence[_Chain]) -> Tensor | None:
        """[B, γ, V]: one-hot for greedy rows; None if all are."""
        if not any(each.q for each in chains):
            return None
        size = next(each.q[0].shape[0] for each in chains if each.q)
        q = torch.zeros(len(chains), max(each.length for each in chains), size)
        for row, each in zip(q, chains, strict=True):
            if each.q:
                row[: len(each.q)] = torch.stack(each.q)
            else:
                row[torch.arange(len(each.tokens)), each.tokens] = 1.0
        return q
