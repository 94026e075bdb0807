"""Draft-model drafter: a second, smaller model with the target's vocabulary drafts chains, or trees that grow.

Trees (Miao et al. 2024, "SpecInfer"): the draft model continues several tokens of a depth in one pass, over a tree mask
in its own cache. How sure it is decides how many tokens are offered where and when drafting ends
(`engine.decoding.tree_growth`): rows offer the likeliest tokens, or draw them. A model on the packed kernels grows its
trees there, all steps in one call, which is the round's own where the target is packed too.

The drafters of one model share its cache and know how much of every row is in it (`DraftCache`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor

from specchat.engine.backends.kernel_drafting import KernelDrafting, PenaltiesOfRows
from specchat.engine.backends.packed import PackedBackend
from specchat.engine.decoding.backend import Backend
from specchat.engine.decoding.draft import Draft, RowOrder, Support, draft_by_kind
from specchat.engine.decoding.drafter import Drafter, DrafterProfile, NetworkRecipe, Recipe, RowProfile
from specchat.engine.decoding.tree import BRANCHES, LONGEST, chain
from specchat.engine.decoding.tree_growth import EXPECTED, GRADES, Expanded, grow
from specchat.engine.decoding.tree_mask import TreePlace
from specchat.engine.device.device import CAPTURED, to_device
from specchat.engine.drafters.build_context import BuildContext
from specchat.engine.drafters.model_steps import ModelSteps, drafted_chains
from specchat.engine.kernels.drafters import Scores
from specchat.engine.sequence.sequence import SequenceState

LEAD = 2
"""Tokens fed in the first draft step: after a full acceptance the last drafted one has not been fed yet."""


class DraftCache:
    """A draft model's cache, with the slots of the target.

    A row's prompt enters it in chunks before the row's first round, the prompts of several rows together where they fit
    into one. What it has read stays with the blocks of the text, whichever drafter of the model reads that next.

    Args:
        model: the draft model, with as many slots and columns as the target.
        chunk: prompt tokens fed in one pass.
    """

    def __init__(self, model: Backend, chunk: int) -> None:
        self._model = model
        self._chunk = chunk
        self._cached: dict[str, int] = {}
        self._drafted: dict[str, int] = {}
        """Length of the chain that is being verified, by request; its last token was never fed."""

    def admit(self, row: SequenceState) -> None:
        """Note how much of the text is known from an earlier turn."""
        self._model.admit(row)
        cache = self._model.cache
        known = cache.attach(row.slot, row.cached) if self._model.capabilities.prefixes else 0
        if cache.states:  # a step feeds the last tokens again
            known = cache.states.reusable(row.slot, min(known, max(len(row.tokens) - LEAD, 0)))
        self._cached[row.request.request_id] = known

    def release(self, row: SequenceState) -> None:
        """Leave what was read to the next turn."""
        self._drafted.pop(row.request.request_id, None)
        cache, known = self._model.cache, min(self._cached.pop(row.request.request_id), row.cached)
        cache.mark(row.slot, 0, known)
        if cache.states:  # states of rejected tokens go
            cache.states.give(row.slot, cache.states.take(row.slot, min(known, max(len(row.tokens) - LEAD, 0))))

    def expect(self, row: SequenceState, length: int) -> None:
        """Note that a chain of `length` tokens has been drafted."""
        self._drafted[row.request.request_id] = length

    def on_accepted(self, row: SequenceState, emitted: Sequence[int]) -> None:
        """Keep what was accepted of a chain and has been fed."""
        length = self._drafted.pop(row.request.request_id, 0)
        if length:
            self.keep(row, len(row.tokens) - len(emitted) + min(len(emitted), length) - 1)

    def cached(self, row: SequenceState) -> int:
        """Number of the row's leading tokens that are cached."""
        return self._cached[row.request.request_id]

    def keep(self, row: SequenceState, length: int) -> None:
        """Count the first `length` tokens of the row as cached."""
        self._cached[row.request.request_id] = length

    def unread(self, row: SequenceState) -> int:
        """Number of tokens to prefill: prompt tokens that the cache lacks; once the reply has begun, 0 unless
        more than a chunk is missing, as fewer are fed with the next draft."""
        behind = self._behind(row, LEAD)
        return behind if behind > (self._chunk if row.emitted else 0) else 0

    def prefill(self, rows: Sequence[SequenceState]) -> None:
        """Feed one chunk, padding included: of the first row, and all that is left of others."""
        batch, width = [rows[0]], min(self._behind(rows[0], LEAD), self._chunk)
        for row in rows[1:]:
            wide = max(width, self._behind(row, LEAD))
            if wide * (len(batch) + 1) <= self._chunk:
                batch, width = [*batch, row], wide
        self._feed(batch, LEAD)

    def catch_up(self, rows: Sequence[SequenceState]) -> int:
        """Feed what the cache lacks, all rows at once, but for the last `LEAD` tokens of each, fewer where a row has no
        more; return the number of tokens left."""
        lead = min(LEAD, *(len(row.tokens) for row in rows))
        while behind := [row for row in rows if self._behind(row, lead) > 0]:
            self._feed(behind, lead)
        return lead

    def _behind(self, row: SequenceState, lead: int) -> int:
        """Tokens of a row but for the last `lead` that the cache lacks."""
        return len(row.tokens) - lead - self._cached[row.request.request_id]

    def _feed(self, rows: Sequence[SequenceState], lead: int) -> None:
        """Feed a chunk of each row that lacks some, in one pass."""
        if self._model.cache.states and len(rows) > 1:  # none may be fed again from an earlier place
            for row in rows:
                self._feed([row], lead)
            return
        starts = [self._cached[row.request.request_id] for row in rows]
        ends = [min(s + self._chunk, len(r.tokens) - lead) for s, r in zip(starts, rows, strict=True)]
        length = max(end - start for start, end in zip(starts, ends, strict=True))
        # Rows with less to feed start earlier: what is fed again is written again, the same as before.
        starts = [max(0, end - length) for end in ends]
        tokens = [r.tokens[s : s + length] for s, r in zip(starts, rows, strict=True)]
        fed = to_device([t + [0] * (length - len(t)) for t in tokens], self._model.device)
        slots = [row.slot for row in rows]
        if self._model.capabilities.captured and length <= CAPTURED[-1]:
            self._model.forward(fed, slots, starts)  # one launch
        else:
            self._model.prefill(fed, slots, starts)
        for row, end in zip(rows, ends, strict=True):
            self._cached[row.request.request_id] = end


CHAINS, TREES = "model", "model-tree"
_FIRST, _LATER = 2 * GRADES, 2 * GRADES + 1
"""Buckets of a tree drafter's chains: the first token, and any later one."""


@dataclass(frozen=True, slots=True)
class Member:
    """A draft model, with what its drafters share."""

    name: str
    """Unique among the draft models."""
    cache: DraftCache
    steps: ModelSteps
    model: Backend


class ModelDrafter(Drafter):
    """A draft model that drafts chains, or trees.

    Draft steps of chains are one forward pass for all rows; tokens and distributions stay on the device. A tree drafter
    drafts chains for rows with lenience.

    Args:
        draft: the draft model.
        trees: whether it drafts trees.
        branches: whether trees may have branches; else they are chains.
    """

    def __init__(self, draft: Member, *, trees: bool = False, branches: bool = True) -> None:
        self.name = TREES if trees else CHAINS
        if trees:
            self.profile = DrafterProfile(range(2 * GRADES + 2), expected_rates=EXPECTED)
        self._model, self._cache, self._steps = draft.model, draft.cache, draft.steps
        self._drafts_trees, self._branches = trees, branches
        self._expanded: dict[str, Expanded] = {}
        """Drafted tokens that the cache has of trees being verified, by request."""
        if trees and branches and isinstance(draft.model, PackedBackend):
            self.recipe = self._recipe_of(draft.model)
            penalties = PenaltiesOfRows(draft.steps.vocabulary)
            self._drafting = cache(partial(KernelDrafting, self.recipe, penalties))

    @property
    def graph_bytes(self) -> int:  # type: ignore[override]
        """Memory of distributions."""
        return 0 if self._drafts_trees else self._steps.graph_bytes

    def warm_up(self) -> float | None:
        """Plan to capture the drawing of tokens."""
        self._steps.plan()
        return None

    def admit(self, row: SequenceState) -> RowProfile:
        """Note how much of the prompt the slot still holds from an earlier turn."""
        self._cache.admit(row)
        if not self._drafts_trees:
            return RowProfile()
        if self._branches and row.request.sampling.lossless:
            return RowProfile(grows=True)
        return RowProfile(lambda gamma: (chain_buckets(gamma, _FIRST, _LATER), chain(gamma)))

    def unread(self, row: SequenceState) -> int:
        """Tokens that the draft model has to be fed."""
        return self._cache.unread(row)

    def prefill(self, rows: Sequence[SequenceState]) -> None:
        """Feed one chunk."""
        self._cache.prefill(rows)

    def propose(self, orders: Sequence[RowOrder]) -> list[Draft]:
        """Chains and trees of up to γ positions."""
        return draft_by_kind(orders, self._grows, self._draft)

    def _grows(self, order: RowOrder) -> bool:
        return self._drafts_trees and self._branches and order.row.request.sampling.lossless

    def _draft(self, growing: bool, orders: Sequence[RowOrder]) -> list[Draft]:
        return self._trees(orders) if growing else self._chains(orders)

    def on_accepted(self, row: SequenceState, emitted: Sequence[int]) -> None:
        """Keep what was accepted and has been fed."""
        expanded = self._expanded.get(row.request.request_id)
        if expanded is None:
            self._cache.on_accepted(row, emitted)
            return
        before = len(row.tokens) - len(emitted)
        if self._cache.cached(row) != before:  # a later round of the same call drafted them
            return
        del self._expanded[row.request.request_id]
        along = expanded.along(emitted)
        if along and along[-1] > len(along):
            self._model.cache.move(row.slot, [before - 1 + number for number in along], before)
        self._cache.keep(row, before + len(along))

    def release(self, row: SequenceState) -> None:
        """Leave the slot's content to the next turn."""
        self._expanded.pop(row.request.request_id, None)
        self._cache.release(row)

    def _chains(self, orders: Sequence[RowOrder]) -> list[Draft]:
        """Chains by as many draft steps as the longest needs; q is kept of rows that draw their drafts."""
        rows, lengths = [order.row for order in orders], [order.gamma for order in orders]
        tokens, q = self._steps.draft(rows, self._cache.catch_up(rows), max(lengths))
        for row, length in zip(rows, lengths, strict=True):
            self._cache.expect(row, length)
        buckets = [chain_buckets(length, _FIRST, _LATER) if self._drafts_trees else () for length in lengths]
        return drafted_chains(orders, tokens, q, buckets)

    @torch.inference_mode()
    def _trees(self, orders: Sequence[RowOrder]) -> list[Draft]:
        """Trees that grow step by step, as long as that pays."""
        if self.recipe:
            return self._drafting(len(orders)).grow(orders)
        rows = [order.row for order in orders]
        logits = self._steps.after_last(rows, self._cache.catch_up(rows))
        drafts, grown = grow(orders, scores_of(logits), self._expand, range(logits.shape[-1]))
        for row, expanded in zip(rows, grown, strict=True):
            self._cache.keep(row, len(row.tokens))
            self._note_expanded(row, expanded)
        return drafts

    def _note_expanded(self, row: SequenceState, expanded: Expanded) -> None:
        self._expanded[row.request.request_id] = expanded

    def _recipe_of(self, model: PackedBackend) -> Recipe:
        """What the kernels need to grow its trees."""
        vocabulary = self._steps.vocabulary
        known = torch.arange(min(model.vocabulary, vocabulary))
        return Recipe(
            network=NetworkRecipe(
                self.name,
                model.drafter_address,
                first=0,
                deepest=LONGEST,
                support=Support.of(known, vocabulary) if len(known) < vocabulary else None,
                take_unread=lambda rows: [self._cache.cached(row) for row in rows],
                has_read=self._cache.keep,
                has_expanded=self._note_expanded,
            )
        )

    def _expand(self, places: Sequence[TreePlace], _: Sequence[int]) -> Scores:
        """Score what follows drafted tokens."""
        return scores_of(self._steps.fit(self._model.extend(places)))


def chain_buckets(length: int, first: int, later: int) -> list[int]:
    """Buckets of a chain's tokens: of the first one, and of any later one."""
    return [first, *[later] * (length - 1)][:length]


def scores_of(logits: Tensor) -> Scores:
    """Scores of places [n, V], with the likeliest tokens of each; no share where a logit is not a number."""
    logits = logits.float().contiguous()
    best = logits.topk(BRANCHES, -1)
    shares = (best.values - logits.logsumexp(-1, keepdim=True)).exp_().nan_to_num_(0.0)
    return Scores(logits, best.indices.int().cpu().numpy(), shares.cpu().numpy())


def members(context: BuildContext) -> Sequence[Member]:
    """The draft models of an engine."""
    if not context.members:
        names = [name for name, _ in context.draft_models]
        unique = [
            f"{name} ({names[: place + 1].count(name)})" if names.count(name) > 1 else name
            for place, name in enumerate(names)
        ]
        context.members = [
            Member(
                name,
                DraftCache(runner, context.prefill_chunk),
                ModelSteps(runner.forward, runner.graphs(128), context.target.penalties, context.target.vocabulary),
                runner,
            )
            for name, (_, runner) in zip(unique, context.draft_models, strict=True)
        ]
    return context.members


def build(context: BuildContext, name: str) -> ModelDrafter:
    """The drafter for an engine: trees for `model-tree`, with branches if the passes of both models can have some."""
    member = members(context)[0]
    branches = context.target.capabilities.trees and member.model.capabilities.trees
    return ModelDrafter(member, trees=name == TREES, branches=branches)
