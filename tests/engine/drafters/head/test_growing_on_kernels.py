"""Trees that a head grows in one call of the kernels, compared with the reference: the same tokens, and the same q."""

import random
from collections.abc import Sequence

import pytest
import torch

from specchat.engine import MAX_GAMMA, Request, Sampling
from specchat.engine.backends.kernel_drafting import KernelDrafting, PenaltiesOfRows
from specchat.engine.decoding.draft import Budget, Draft, RowOrder, Support
from specchat.engine.decoding.tree_growth import EXPECTED, fixed_budget, grow
from specchat.engine.drafters.head.drafter import HeadMemory, recipe_of
from specchat.engine.kernels.library import library
from specchat.engine.sequence.detokenizer import Detokenizer
from specchat.engine.sequence.sequence import SequenceState
from tests.engine.drafters.head.test_packed_layer import COLUMNS, DRAFTED, WORDS, Pair
from tests.engine.drafters.heads import scores_along
from tests.engine.kernels.variants import use, variants_of
from tests.engine.rows import row_of

pytestmark = pytest.mark.usefixtures("kernels")
SAMPLINGS = (
    Sampling(), Sampling(temperature=1.0), Sampling(temperature=0.3), Sampling(temperature=1.5, top_k=3),
    Sampling(temperature=1.0, top_p=0.8), Sampling(temperature=0.9, min_p=0.05, top_k=20, top_p=0.95),
)  # fmt: skip


class Both:
    """A head with rows that have something to read, and the two ways to draft for them."""

    def __init__(self) -> None:
        pair = Pair()
        self.layer, self.tapped = pair.packed, pair.tapped
        self.support = Support.of(torch.randperm(WORDS)[:DRAFTED].sort().values, WORDS)
        self.memory = HeadMemory(self.layer, 3)
        self.rows: list[SequenceState] = []

    def admit(self, lengths: Sequence[int], requests: Sequence[Request], chance: random.Random) -> None:
        """New rows of so many tokens."""
        for row in self.rows:
            self.memory.release(row)
        self.rows = []
        for slot, (length, request) in enumerate(zip(lengths, requests, strict=True)):
            tokens, seed = chance.choices(range(WORDS), k=length), chance.getrandbits(64)
            row = row_of(tokens, slot, request, seed=seed)
            row.rounds = chance.randrange(1000)
            self.memory.admit(row)
            self.memory.absorb([row], self.tapped[slot : slot + 1, : length - 1])
            row.cached = length - 1
            self.rows.append(row)

    def advance(self, emitted: int, chance: random.Random) -> None:
        """Rows emit tokens, which the head has not read."""
        for row in self.rows:
            self.memory.absorb([row], self.tapped[row.slot : row.slot + 1, row.cached : row.cached + emitted])
            row.tokens += chance.choices(range(WORDS), k=emitted)
            row.cached += emitted
            row.rounds += 1

    def draft(self, orders: Sequence[RowOrder]) -> tuple[list[Draft], list[Draft]]:
        """Drafts made in one call, then step by step."""
        recipe = recipe_of(self.layer, self.support, self.memory)
        at_once = KernelDrafting(recipe, PenaltiesOfRows(WORDS), len(orders)).grow(orders)
        scores_along(self.layer, self.memory, [order.row for order in orders])
        return at_once, grow(orders, self.layer.scores, self.layer.expand, self.support.tokens.tolist())[0]


def assert_alike(ours: Sequence[Draft], theirs: Sequence[Draft], rounding: float = 1e-5) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert (one.tokens, one.tree, one.buckets, one.steps) == (other.tokens, other.tree, other.buckets, other.steps)
        if one.q is None or other.q is None:
            assert one.q is None
            assert other.q is None or not len(other.tree)
            continue
        assert one.q.shape == other.q.shape
        for node in set(one.tree.parents):
            torch.testing.assert_close(one.q[node], other.q[node], rtol=rounding, atol=rounding)


def budget(chance: random.Random, stated: int | None) -> Budget:
    """Measured or fixed costs of a row, for which γ may be stated."""
    if chance.random() < 0.3:
        return fixed_budget(stated or 0)
    passes, factor = [0.0], chance.uniform(0.3, 1.5)
    token = 10 ** chance.uniform(-2.5, 0.2)
    for _ in range(MAX_GAMMA):
        passes.append(passes[-1] + token * chance.uniform(0.2, 2))
    return Budget(passes, 10 ** chance.uniform(-3, 0), _rates(factor), chance.choice((0, 0, 2)))


def _rates(factor: float) -> dict[int, float]:
    return {bucket: min(1.0, rate * factor) for bucket, rate in EXPECTED.items()}


def case(both: Both, chance: random.Random, count: int) -> list[RowOrder]:
    """Orders of any kind."""
    gammas = [chance.choice((1, 2, 3, 4, 8, 12, 16)) for _ in range(count)]
    stated = [chance.choice((None, gamma)) for gamma in gammas]
    requests = [
        Request(f"{i}", prompt_ids=(1,), gamma=gamma, sampling=chance.choice(SAMPLINGS))
        for i, gamma in enumerate(stated)
    ]
    both.admit([chance.randrange(2, COLUMNS - 40) for _ in range(count)], requests, chance)
    return [
        RowOrder(row, gamma, budget(chance, own)) for row, gamma, own in zip(both.rows, gammas, stated, strict=True)
    ]


def test_one_call_gives_what_steps_give() -> None:
    chance, both = random.Random(5), Both()
    sizes, steps = set[int](), set[int]()
    for _ in range(60):
        orders = case(both, chance, chance.randrange(1, 4))
        for emitted in (0, 1, 3):
            both.advance(emitted, chance)
            ours, theirs = both.draft(orders)
            assert_alike(ours, theirs)
            sizes |= {len(draft.tree) for draft in ours}
            steps |= {draft.steps for draft in ours}
    assert {0, 1, MAX_GAMMA} <= sizes, "the trees must differ for this to show anything"
    assert {1, 8} <= steps


def test_every_instruction_set_grows_the_same_trees() -> None:
    found: list[list[list[Draft]]] = []
    try:
        for variant in variants_of(library()):
            use(library(), variant)
            chance, both = random.Random(7), Both()
            torch.manual_seed(1)
            both.support = Support.of(torch.randperm(WORDS)[:DRAFTED].sort().values, WORDS)
            found.append([both.draft(case(both, chance, 3))[0] for _ in range(8)])
    finally:
        use(library(), None)
    for drafts in found[1:]:
        for ours, theirs in zip(drafts, found[0], strict=True):
            assert_alike(ours, theirs, rounding=0.0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_have_the_bias_and_the_penalties_of_their_row(temperature: float) -> None:
    """So large that greedy drafts have no token twice and none has an even token; next to a row without any."""
    chance, both = random.Random(5), Both()
    bias = tuple((token, -100.0) for token in range(0, WORDS, 2))
    penalised = Sampling(temperature, repetition_penalty=100.0, logit_bias=bias)
    requests = [Request(f"{i}", prompt_ids=(1,), sampling=each) for i, each in enumerate((penalised, Sampling()))]
    both.admit([30, 20], requests, chance)
    row = both.rows[0]
    row.text = Detokenizer(None, ())
    free = Budget([0.001 * n for n in range(MAX_GAMMA + 1)], 0.001, EXPECTED, required=4)
    (draft, other), reference = both.draft([RowOrder(row, 4, free), RowOrder(both.rows[1], 4, free)])
    assert other.tokens == reference[1].tokens
    assert draft.tree.depth == 4
    assert all(token % 2 for token in draft.tokens)
    for node in range(1, len(draft.tree) + 1):
        path = [draft.tokens[each - 1] for each in draft.tree.path(node)]
        if not temperature:
            assert len({*path, *row.tokens}) == len(path) + len({*row.tokens})
