"""Verdicts of static shape and of the CPU kernels: the same outcomes as by the reference, called eagerly."""

import random
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from specchat.engine.backends.kernel_drafting import PenaltiesOfRows
from specchat.engine.backends.packed import fill_rows
from specchat.engine.backends.packed_runner import outcomes_of
from specchat.engine.backends.tensor_acceptance import TensorAcceptance
from specchat.engine.decoding.draft import Draft, DraftBatch, RowOrder, Support, common_support
from specchat.engine.decoding.round import Outcome
from specchat.engine.decoding.tree import BRANCHES, Tree, chain, tree_of
from specchat.engine.device.graphs import GraphPool, Graphs
from specchat.engine.kernels.library import library
from specchat.engine.kernels.round import RoundRows, RoundRules
from specchat.engine.request import Request
from specchat.engine.sampling.penalties import Penalties
from specchat.engine.sampling.rng import Stream
from specchat.engine.sampling.sampler import draw_different
from specchat.engine.sequence.sequence import SequenceState
from specchat.engine.settings import Sampling
from tests.engine.sampling.test_penalties import DRY, EVERY_KIND

CPU = torch.device("cpu")
TEXT = SimpleNamespace(name=str, names=lambda count: [*map(str, range(count))])
GREEDY = Sampling()
BATCHES = {
    "plain": [Sampling(temperature=1.0)],
    "small top-k": [Sampling(temperature=0.8, top_k=5)],
    "filtered": [Sampling(temperature=1.1, top_p=0.8, min_p=0.01)],
    "lenient": [Sampling(temperature=1.0, lenience=0.7)],
    "mixed": [Sampling(temperature=1.0), GREEDY, Sampling(temperature=0.9, top_k=7)],
    "greedy": [GREEDY],
    "xtc": [Sampling(temperature=1.0, xtc_probability=0.5), GREEDY],
    "penalties": [
        Sampling(temperature=1.0, repetition_penalty=1.4, frequency_penalty=0.5),
        Sampling(dry_multiplier=0.8, dry_sequence_breakers=(), dry_allowed_length=1),
    ],
}
TREES = {"chain": chain(3), "tree": tree_of(3), "uneven tree": Tree((0, 0, 2, 2, 0))}


def rows_of(count: int, batch: Sequence[Sampling], detail: int = 0) -> list[SequenceState]:
    """Rows of requests, which have the settings of the batch in turn."""
    requests = [Request("r", prompt_ids=(1,), sampling=batch[i % len(batch)], detail=detail) for i in range(count)]
    return [
        SequenceState(request, None, i, [1, 2, 1], 1, 2, 100 + i, TEXT, "head", rounds=5)  # type: ignore[arg-type]
        for i, request in enumerate(requests)
    ]


def drafted(tree: Tree, count: int, *, certain: bool, size: int = 40) -> tuple[Tensor, list[Draft]]:
    """Logits [count, T, V] and drafts of them over a subset of the vocabulary, which are often right."""
    made = torch.Generator().manual_seed(3)
    logits = 2 * torch.randn(count, len(tree) + 1, size, generator=made)
    support = Support.of(torch.randperm(size, generator=made)[: size * 3 // 4], size)
    q = (logits[..., support.tokens] + torch.randn(count, len(tree) + 1, size * 3 // 4, generator=made)).softmax(-1)
    tokens = torch.zeros(count, len(tree), dtype=torch.long)
    for node, children in enumerate(tree.children):
        u = torch.rand(count, 1, len(children), generator=made, dtype=torch.float64)
        if children and certain:
            tokens[:, [child - 1 for child in children]] = logits[:, node].topk(len(children)).indices
        elif children:
            places = draw_different(q[:, node : node + 1], u)[:, 0]
            tokens[:, [child - 1 for child in children]] = support.tokens[places]
    if certain:
        return logits, [Draft(own, tree) for own in tokens]
    return logits, [Draft(own, tree, each[: tree.inner], support) for own, each in zip(tokens, q, strict=True)]


def mask(row: SequenceState, draft: Draft, size: int) -> None:
    """Allow half of the tokens after each node, and all that were drafted: drafts are cut elsewhere."""
    shape = len(draft.tree) + 1, -(-size // 32)
    words = np.random.default_rng(row.slot).integers(0, 1 << 32, shape, dtype=np.uint32)
    for token in draft.on_host:
        words[:, token // 32] |= np.uint32(1 << token % 32)
    words = words.view(np.int32)
    row.constraint = SimpleNamespace(masks=lambda _: words)  # type: ignore[assignment]


def judged(
    by: TensorAcceptance, rows: Sequence[SequenceState], logits: Tensor, drafts: Sequence[Draft], gamma: int = 3
) -> list[Outcome]:
    return by.judge(rows, logits, DraftBatch.of(drafts, CPU), [gamma] * len(rows)).outcomes()


def acceptance(rows: int, pool: GraphPool | None = None) -> TensorAcceptance:
    return TensorAcceptance(Graphs(CPU, rows, pool), Penalties(rows, 64, CPU))


def expect_equal(ours: Sequence[Outcome], theirs: Sequence[Outcome], rel: float) -> None:
    for one, other in zip(ours, theirs, strict=True):
        for name in ("gamma", "emitted", "path", "offered", "broken"):
            assert getattr(one, name) == getattr(other, name), name
        assert one.tests.drafted == other.tests.drafted
        for name in ("p", "q", "u", "beta"):
            wanted = getattr(other.tests, name)
            assert getattr(one.tests, name) == pytest.approx(wanted, rel=rel, abs=1e-6), name
        for mine, wanted in zip(one.tests.refused, other.tests.refused, strict=True):
            assert [offer[0] for offer in mine] == [offer[0] for offer in wanted]
            flat = [number for offer in wanted for number in offer]
            assert [number for offer in mine for number in offer] == pytest.approx(flat, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("detail", [0, 3])
@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES.keys())
@pytest.mark.parametrize("tree", TREES.values(), ids=TREES.keys())
def test_static_shapes_give_the_outcomes_of_the_eager_call(tree: Tree, batch: list[Sampling], detail: int) -> None:
    if tree.branches and not all(sampling.lossless for sampling in batch):
        pytest.skip("lenient rows take chains")
    count = 6
    rows, fixed, eager = rows_of(count, batch, detail), acceptance(8, GraphPool(CPU, capture=False)), acceptance(8)
    for certain in (True, False, True):  # one shape serves all, whatever the call before left in its inputs
        logits, drafts = drafted(tree, count, certain=certain)
        ours = judged(fixed, rows, logits, drafts)
        theirs = judged(eager, rows, logits, drafts)
        expect_equal(ours, theirs, 1e-5)
        if detail:
            assert all(len(one.detail) >= 1 + one.accepted for one in ours)


def test_nan_in_the_static_input_of_q_does_not_reach_certain_drafts() -> None:
    rows, graphs = rows_of(4, BATCHES["plain"]), Graphs(CPU, 4, GraphPool(CPU, capture=False))
    fixed = TensorAcceptance(graphs, Penalties(4, 64, CPU))
    logits, failed = drafted(chain(3), 4, certain=False)
    for draft in failed:
        draft.q.fill_(torch.nan)
    assert [each.accepted for each in judged(fixed, rows, logits, failed)] == [0] * 4
    logits, certain = drafted(chain(3), 4, certain=True)
    wanted = judged(acceptance(4), rows, logits, certain)
    expect_equal(judged(fixed, rows, logits, certain), wanted, 1e-5)


def packed(rows: Sequence[SequenceState], logits: Tensor, drafts: Sequence[Draft]) -> list[Outcome]:
    size, logits, penalties = logits.shape[-1], logits.clone(), PenaltiesOfRows(logits.shape[-1])
    likeliest = torch.where(logits.isfinite().all(-1), logits.argmax(-1), -1).int()
    memory = RoundRows(len(rows), 16, RoundRules(size, BRANCHES, Stream.ACCEPT, Stream.LAST))
    fill_rows(memory, rows, drafts, common_support(drafts), penalties)
    for row, scores, best in zip(memory.rows, logits, likeliest, strict=True):
        row.logits, row.best = scores.data_ptr(), best.data_ptr()
    library().c.sk_judge(memory.c.rows)
    return outcomes_of([RowOrder(row, 3) for row in rows], drafts, memory, acceptance(64))


@pytest.mark.daily(6)
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("size", [64, 1037])
@pytest.mark.parametrize("certain", [True, False], ids=["certain", "drawn"])
@pytest.mark.parametrize("masked", [False, True], ids=["free", "masked"])
@pytest.mark.parametrize("tree", TREES.values(), ids=TREES.keys())
def test_the_kernels_give_the_outcomes_of_the_reference(tree: Tree, masked: bool, certain: bool, size: int) -> None:
    count = 300
    names = ("mixed", "filtered", "xtc", "penalties")
    batch = [sampling for name in names for sampling in BATCHES[name]]
    rows = rows_of(count, [*batch, Sampling(temperature=1.0, top_k=300, top_p=0.6)])
    logits, drafts = drafted(tree, count, certain=certain, size=size)
    for row, draft in zip(rows[::2], drafts[::2], strict=True) if masked else ():
        mask(row, draft, size)
    ours = packed(rows, logits, drafts)
    expect_equal(ours, judged(acceptance(count), rows, logits, drafts), 1e-4)
    assert len({each.accepted for each in ours}) > 1
    for i in range(0, count, 31):
        (alone,) = packed(rows[i : i + 1], logits[i : i + 1], drafts[i : i + 1])
        assert (alone.emitted, alone.tests) == (ours[i].emitted, ours[i].tests), "in any batch, to the bit"


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("sampling", [*EVERY_KIND, *DRY])
def test_the_kernels_change_logits_as_the_reference_does(sampling: Sampling) -> None:
    """Bias and penalties, after texts that repeat themselves and drafts that do."""
    count, size, tree = 24, 12, tree_of(3)
    chance = random.Random(3)
    rows = rows_of(count, [replace(sampling, temperature=0.0), replace(sampling, temperature=1.0)])
    logits, drafts = drafted(tree, count, certain=True, size=size)
    for row in rows:
        row.tokens = chance.choices(range(size), k=40)
        row.prompt_length, row.cached = 30, 39
    wanted = judged(acceptance(count), rows, logits, drafts)
    expect_equal(packed(rows, logits, drafts), wanted, 1e-4)
    greedy = range(0, count, 2)  # what sampled rows draw depends on the position
    for i in greedy:  # the token has no logit that could change, and breaks every repetition
        rows[i].tokens = [size + 3, *rows[i].tokens]
        rows[i].prompt_length, rows[i].cached = 31, 40
    expect_equal(packed(rows[::2], logits[::2], drafts[::2]), wanted[::2], 1e-4)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_logits_that_are_not_finite_are_reported(value: float) -> None:
    logits, rows = torch.tensor([[[1.0, value, 0.5]]]), rows_of(1, BATCHES["plain"])
    assert packed(rows, logits, [Draft()])[0].broken
    assert judged(acceptance(1), rows, logits, [Draft()], 0)[0].broken
