"""Rounds on the packed CPU kernels: one call drafts, scores and judges, and may run several rounds.

The path is chosen per row, independently of the batch. Rows that the kernels cannot draft for get their drafts on the
host before the call; rows with lenience, details or listed candidates are judged after it, by the reference on tensors
(`engine.backends.tensor_acceptance`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cache, cached_property, partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from specchat.engine.backends.kernel_drafting import KernelDrafting
from specchat.engine.backends.packed import PackedBackend, judged_by_reference
from specchat.engine.backends.tensor_acceptance import TensorAcceptance
from specchat.engine.backends.tensor_backend import TensorBackend, TensorRunner
from specchat.engine.decoding.backend import Backend
from specchat.engine.decoding.draft import Draft, DraftBatch, RowOrder
from specchat.engine.decoding.drafter import Recipe, RowDrafters
from specchat.engine.decoding.round import Outcome, RoundOutcome, Runner, Trim, begin_masks, tested_candidates
from specchat.engine.decoding.tree import Tree
from specchat.engine.device.graphs import Graphs
from specchat.engine.kernels.library import KernelError
from specchat.engine.kernels.round import RoundRows
from specchat.engine.sampling.rng import Stream, uniform
from specchat.engine.sequence.sequence import SequenceState

_PLAIN = Draft()


class PackedRunner(Runner[PackedBackend]):
    """Runs the rounds of a target on the packed kernels."""

    @cached_property
    def _reference(self) -> TensorAcceptance:
        """Judges rows that the kernels do not."""
        target = self._target
        return TensorAcceptance(Graphs(target.device, target.cache.slots, None), target.penalties)

    @cached_property
    def _draftings(self) -> Callable[[Recipe, int], KernelDrafting]:
        """Memory for drafts, by recipe and number of rows."""
        return cache(lambda recipe, count: KernelDrafting(recipe, self._target.penalties_of_rows, count))

    def run(self, orders: Sequence[RowOrder], max_rounds: int = 1, ends: Collection[int] = ()) -> list[RoundOutcome]:
        """Run one round, or several (`Runner.run`)."""
        started = perf_counter()
        recipe = self._recipe(orders)
        drafts = self._known_drafts(orders, recipe)
        drafting = None
        if any(draft is None for draft in drafts):
            drafting, drafts = self._filled(orders, recipe, drafts)
        filled = perf_counter()
        rounds = max_rounds if all(draft is None or draft is _PLAIN for draft in drafts) else 1
        rows, known = [order.row for order in orders], [draft or _PLAIN for draft in drafts]
        drafter = recipe.network.address if recipe.network and (drafting or rounds > 1) else None
        begin_masks(rows, known)
        try:
            memory = self._target.run_rounds(rows, known, rounds, drafting, drafter, ends)
        except KernelError as error:
            if drafting is None:
                raise
            drafting = None  # the target continues alone
            known = [Draft(fault=error) if draft is None else draft for draft in drafts]
            # A later round of these may have failed, which the texts for the penalties know of.
            memory = self._target.run_rounds(rows, known)
        self._on_launch()
        results = []
        for each in memory:
            made = known
            if drafting:
                made = drafting.drafts([each.draft(i) for i in range(len(rows))], each.c.steps)
            results.append((each, made, outcomes_of(orders, made, each, self._reference)))
        last, _, outcomes = results[-1]
        for row, outcome in zip(last.rows, outcomes, strict=True):
            if outcome.moves:
                self._target.cache.move(row.slot, [row.start + node for node in outcome.path], row.start + 1)
        verified_s = perf_counter() - filled - sum(each.c.seconds for each in memory[:-1])
        if width := self._target.tapped_width:
            states = RoundStates(last, width)
            self._drafters.on_hidden_states(rows, states, [1 + outcome.accepted for outcome in outcomes])
        draft_s = (filled - started) / len(results)
        verifying = [*(each.c.seconds for each in memory[:-1]), verified_s]
        return [
            RoundOutcome(made, judged, draft_s + each.c.growing_s, seconds - each.c.growing_s)
            for (each, made, judged), seconds in zip(results, verifying, strict=True)
        ]

    def plain_pass(self, rows: Sequence[SequenceState]) -> None:
        """Score and judge without drafts, and keep nothing."""
        plain = [_PLAIN] * len(rows)
        (memory,) = self._target.run_rounds(rows, plain)
        outcomes_of([RowOrder(row, 0) for row in rows], plain, memory, self._reference)

    def _recipe(self, orders: Sequence[RowOrder]) -> Recipe:
        """The recipe of the batch: of the first row that drafts and has one, if any does, else of the first row."""
        recipes = (self._drafters.of(order.row).recipe for order in orders if order.drafts)
        return next(filter(None, recipes), self._drafters.of(orders[0].row).recipe) or Recipe()

    def _known_drafts(self, orders: Sequence[RowOrder], recipe: Recipe) -> list[Draft | None]:
        """Drafts that are made on the host; None for rows that the kernels draft for."""
        drafts: list[Draft | None] = [
            None if order.drafts and self._is_covered(order, recipe) else _PLAIN for order in orders
        ]
        self._draft_on_host(orders, drafts, [i for i, order in enumerate(orders) if order.drafts and drafts[i]])
        support = recipe.network and recipe.network.support
        if any(draft and draft.q is not None and draft.support is not support for draft in drafts):
            # A call has one draft vocabulary.
            self._draft_on_host(orders, drafts, [i for i, draft in enumerate(drafts) if draft is None])
        return drafts

    def _draft_on_host(self, orders: Sequence[RowOrder], drafts: list[Draft | None], rows: Sequence[int]) -> None:
        """Make the drafts of some rows (by index) now."""
        if not rows:
            return
        some = [orders[i] for i in rows]
        for i, draft in zip(rows, self._trim(some, self._drafters.propose(some), len(orders)), strict=True):
            drafts[i] = draft

    def _is_covered(self, order: RowOrder, recipe: Recipe) -> bool:
        """Whether the kernels draft for a row; what raises here is raised again, and reported, by `propose`."""
        try:
            return self._drafters.of(order.row).recipe is recipe and recipe.covers(order)
        except Exception:
            return False

    def _filled(
        self, orders: Sequence[RowOrder], recipe: Recipe, drafts: list[Draft | None]
    ) -> tuple[KernelDrafting | None, list[Draft | None]]:
        """What the kernels draft; if that cannot be said, the fault of the rows that they would have drafted for."""
        drafting = self._draftings(recipe, len(orders))
        try:
            drafting.fill(orders, drafts)
        except Exception as error:  # a drafter is a plug: whatever it raises, the target continues alone
            return None, [Draft(fault=error) if draft is None else draft for draft in drafts]
        return drafting, drafts


def runner_of(target: Backend, drafters: RowDrafters, trim: Trim, on_launch: Callable[[], object]) -> Runner[Any]:
    """The runner of a target; arguments as for `Runner`."""
    if isinstance(target, PackedBackend):
        return PackedRunner(target, drafters, trim, on_launch)
    assert isinstance(target, TensorBackend)
    return TensorRunner(target, drafters, trim, on_launch)


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
            self.rows.tapped(self._width)[[first + node for node in (0, *self.rows.judged(i).path)]]
        )


def outcomes_of(
    orders: Sequence[RowOrder], drafts: Sequence[Draft], judged: RoundRows, reference: TensorAcceptance
) -> list[Outcome]:
    """The outcome of each row; `reference` judges the rows that the kernels cannot judge."""
    outcomes: dict[int, Outcome] = {}
    rows = [order.row for order in orders]
    masks = {
        i: row.constraint.masks(row.tokens)
        for i, row in enumerate(rows)
        if row.constraint and not judged_by_reference(row, drafts[i])
    }
    if masks:
        judged.judge(masks)
    if held := [i for i, row in enumerate(judged.rows) if row.held]:
        logits = pad_sequence([torch.from_numpy(judged.logits(i)) for i in held], batch_first=True)
        batch = DraftBatch.of([drafts[i] for i in held], logits.device)
        gammas = [max(orders[i].gamma, drafts[i].tree.depth) for i in held]
        result = reference.judge([rows[i] for i in held], logits, batch, gammas)
        outcomes |= zip(held, result.outcomes(), strict=True)
        for i, outcome in outcomes.items():
            judged.set_accepted(i, outcome.path)
    return [
        outcomes[i] if i in outcomes else _outcome(order, draft, judged, i)
        for i, (order, draft) in enumerate(zip(orders, drafts, strict=True))
    ]


def _outcome(order: RowOrder, draft: Draft, judged: RoundRows, i: int) -> Outcome:
    """The outcome of the i-th row, which the kernels have judged."""
    row, gamma, tree = order.row, order.gamma, draft.tree
    made, number = judged.judged(i), judged.rows[i].number
    if number > row.rounds:  # a later round has less room
        gamma = min(gamma, judged.rows[i].left - 1)
    gamma = max(gamma, tree.depth)  # what takes no draft step is drafted beyond it
    chances: Iterable[tuple[float, float]] = zip(made.p, made.q, strict=True)
    betas: Sequence[float] = made.beta
    if row.greedy:
        chances, betas = _certainties(tree, made.path), [*[1.0] * len(made.path), 0.0]
    u = partial(uniform, row.seed, number, Stream.ACCEPT)
    certain = not judged.rows[i].q
    return Outcome(gamma, draft.on_host, tree, made.path, made.last, made.last < 0, chances, u, betas, certain)


def _certainties(tree: Tree, path: Sequence[int]) -> Iterator[tuple[float, float]]:
    """p and q of the tested candidates of a greedy row."""
    for place, count in enumerate(tested_candidates(tree, path)):
        yield from [(0.0, 1.0)] * (count - 1)
        yield float(place < len(path)), 1.0
