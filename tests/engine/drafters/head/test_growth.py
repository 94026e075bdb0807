"""Trees that grow: exact whatever they are grown by, cheap where tokens cost, and the same alone and in a batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from specchat.engine import Engine, EngineConfig, Request, Round, Sampling
from specchat.engine.decoding.acceptance import Drafted, accept
from specchat.engine.decoding.gamma.budget import Budget, repeatable
from specchat.engine.decoding.proposal import Support
from specchat.engine.decoding.tree import Tree
from specchat.engine.decoding.tree_mask import TreeMask
from specchat.engine.drafters.growing.drawer import Drawer
from specchat.engine.drafters.growing.growth import Growth, Node, nominal_rate
from specchat.engine.drafters.head.folder import LoadedHead
from specchat.engine.drafters.head.network import DraftHead, HeadShape
from specchat.engine.kernels.library import missing
from specchat.engine.models.packed.find import packed_folder
from specchat.engine.models.packed.load import PackedModel, load_packed
from specchat.engine.models.packed.quantize import quantize_network
from specchat.engine.models.store import ModelStore
from specchat.engine.progress import ignore_progress
from specchat.engine.request import MAX_GAMMA
from specchat.engine.sampling.sampling_rows import SamplingRows
from specchat.engine.sequence.sequence import SequenceState
from specchat.engine.worker.assembly import put_together
from tests.engine.chi_square import z_score
from tests.engine.families import write_family
from tests.engine.tiny import assert_the_same_in_a_batch, ids_of

CPU = torch.device("cpu")
WORDS = 6


def costs(token: float, step: float = 0.05) -> Budget:
    return Budget([token * n for n in range(18)], step, nominal_rate)


class Text:
    """Random distributions of what follows every text of up to three tokens, of a target and of its drafter."""

    def __init__(self) -> None:
        make = torch.Generator().manual_seed(3)
        self._sizes = [WORDS**n for n in range(4)]
        self.p = [(2 * torch.randn(n, WORDS, generator=make)).softmax(-1) for n in self._sizes]
        self.logits = [p.log() + 1.2 * torch.randn(p.shape, generator=make) for p in self.p]

    @staticmethod
    def place(path: list[int]) -> int:
        return int(sum(token * WORDS**i for i, token in enumerate(path)))


def grown(text: Text, seed: int, budget: Budget) -> tuple[Growth, Drawer]:
    """One tree, drawn."""
    request = Request("r", prompt_ids=(1,), sampling=Sampling(temperature=1.0))
    row = SequenceState(request, None, 0, [1], 1, 0, seed, None, "head")  # type: ignore[arg-type]
    growth, drawer = Growth(budget, 3, drawn=True), Drawer(row, torch.zeros(MAX_GAMMA, WORDS))
    nodes, paths = [Node(0, 1.0, 0)], {0: list[int]()}
    while nodes:
        logits = torch.stack([text.logits[len(paths[n.place])][text.place(paths[n.place])] for n in nodes])
        nodes = [Node(n.place, n.chance, i) for i, n in enumerate(nodes)]
        shares = logits.softmax(-1).sort(-1, descending=True).values.tolist()
        added = drawer.draw(growth, growth.offers(nodes, shares), logits[None], list(range(WORDS)))
        promises, gain = growth.promising(added)
        if gain <= budget.step:
            break
        nodes = []
        for place, each in promises:
            paths[place] = [*paths[each.node.place], growth.tokens[place - 1]]
            nodes.append(Node(place, each.chance, 0))
    return growth, drawer


@pytest.mark.parametrize(
    ("token", "trials"),
    [(0.1, 1200), *(pytest.param(token, 6000, marks=pytest.mark.slow) for token in (0.02, 0.1, 0.15))],
)
def test_what_comes_out_has_the_targets_distribution(token: float, trials: int) -> None:
    text, budget = Text(), costs(token)
    made = [grown(text, seed, budget) for seed in range(trials)]
    trees = [growth.tree()[2] for growth, _ in made]
    sizes = {len(tree) for tree in trees}
    assert len(sizes) > 3, "the trees must differ for this to show anything"
    longest = max(sizes)
    drafted = torch.zeros(trials, longest, dtype=torch.long)
    q = torch.zeros(trials, longest + 1, WORDS)
    p = torch.zeros(trials, longest + 1, WORDS)
    for i, ((growth, drawer), tree) in enumerate(zip(made, trees, strict=True)):
        drafted[i, : len(tree)] = torch.tensor(growth.tokens)
        for node in growth.inner:
            q[i, node] = drawer.q[node]
        for node in range(len(tree) + 1):
            path = [growth.tokens[n - 1] for n in tree.path(node)]
            p[i, node] = text.p[len(path)][text.place(path)]
    draws = torch.Generator().manual_seed(9)
    mask = TreeMask.fresh(trees, longest + 1, CPU)
    u = torch.rand(trials, len(mask.widths), 4, dtype=torch.float64, generator=draws)
    u_last = torch.rand(trials, dtype=torch.float64, generator=draws)
    support = Support.of(torch.arange(WORDS), WORDS)
    batch = Drafted(drafted, mask, q, support, torch.ones(trials, dtype=torch.bool))
    settings = SamplingRows.of([Sampling(temperature=1.0)] * trials, CPU)
    verdict = accept(p.log(), batch, settings, u, u_last)
    padded = torch.cat([torch.zeros(trials, 1, dtype=torch.long), drafted], 1)
    accepted = (verdict.path > 0).sum(1)
    emitted = [[*padded[i, verdict.path[i, : accepted[i]]].tolist(), int(verdict.last[i])] for i in range(trials)]
    assert abs(z_score(torch.tensor([tokens[0] for tokens in emitted]), text.p[0][0])) < 4
    for word in range(WORDS):
        behind = torch.tensor([tokens[1] for tokens in emitted if len(tokens) > 1 and tokens[0] == word])
        if len(behind) > 100:
            assert abs(z_score(behind, text.p[1][word])) < 4


def shares_of(*peaks: float) -> list[list[float]]:
    return [[peak, *[(1 - peak) * 0.02] * 3] for peak in peaks]


def test_a_tree_is_as_large_as_tokens_are_cheap_and_the_head_is_sure() -> None:
    def size(peak: float, token: float) -> int:
        growth, nodes = Growth(costs(token), 8, drawn=False), [Node(0, 1.0, 0)]
        while nodes:
            offers = growth.offers(nodes, shares_of(peak) * len(nodes))
            for offer in offers:
                growth.add(offer, 0)
            promises, gain = growth.promising(offers)
            nodes = [Node(place, each.chance, 0) for place, each in promises if gain > growth.budget.step]
        return len(growth.tree()[0])

    assert size(0.99, 0.1) > size(0.6, 0.1) > size(0.06, 0.1) == 0
    assert size(0.6, 0.01) > size(0.6, 0.1) > size(0.6, 0.6) == 0


def test_a_stated_length_is_drafted_whatever_it_costs() -> None:
    growth, nodes = Growth(repeatable(nominal_rate, line=3), 3, drawn=False), [Node(0, 1.0, 0)]
    for _ in range(3):
        for offer in (offers := growth.offers(nodes, shares_of(0.05))):
            growth.add(offer, 0)
        promises, gain = growth.promising(offers)
        assert gain >= growth.budget.step or not promises
        nodes = [Node(place, each.chance, 0) for place, each in promises]
    assert growth.tree()[2] == Tree((0, 1, 2))
    assert not nodes


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A packed model with a head of random weights."""
    if missing():
        pytest.skip(str(missing()))
    folder = tmp_path_factory.mktemp("packed")
    made = packed_folder(str(write_family("llama", folder / "llama")), "q8", ModelStore(folder), ignore_progress)
    assert made is not None
    model: PackedModel = load_packed(made, ignore_progress)
    torch.manual_seed(1)
    head = DraftHead(HeadShape(64, 4, 2, 16, 96, (1, 2, 3), 10000.0, 1e-5)).eval().requires_grad_(False)
    quantize_network(head)
    loaded = LoadedHead(head, torch.randperm(model.vocab_size)[:200].sort().values, "head", 1)
    config = EngineConfig("llama", folder, slots=4, context=200)
    running = Engine(config, lambda *_: put_together(config, model, head=loaded))
    running.start()
    running.wait_ready(60)
    yield running
    running.close()


def asked(seed: int, drafter: str, gamma: int | None, sampling: Sampling) -> Request:
    prompt = tuple(3 + (seed * 31 + 7 * i) % 300 for i in range(5 + 9 * seed))
    return Request(f"{seed}", prompt_ids=prompt, drafter=drafter, gamma=gamma, max_tokens=24, sampling=sampling)


@pytest.mark.parametrize("gamma", [None, 1, 4, 12])
def test_greedy_replies_are_the_targets_own(engine: Engine, gamma: int | None) -> None:
    for seed in range(3):
        plain = ids_of(list(engine.stream(asked(seed, "none", None, Sampling()))))
        for drafter in ("head", "combined"):
            assert ids_of(list(engine.stream(asked(seed, drafter, gamma, Sampling())))) == plain


def test_a_seeded_reply_is_the_same_alone_and_in_any_batch(engine: Engine) -> None:
    kinds = (("head", None), ("combined", None), ("head", 4), ("combined", 3), ("head", 12))
    requests = [
        asked(i, drafter, gamma, Sampling(temperature=temperature, seed=i, top_k=top_k))
        for i, ((drafter, gamma), temperature, top_k) in enumerate(
            zip(kinds, (1.0, 1.0, 0.7, 1.0, 0.5), (0, 0, 0, 3, 0), strict=True)
        )
    ]
    special = (
        Sampling(temperature=1.0, seed=8, repetition_penalty=1.2),
        Sampling(temperature=1.0, seed=9, lenience=0.5),
    )
    requests += [asked(8 + i, "head", 4, sampling) for i, sampling in enumerate(special)]
    requests.append(replace(asked(10, "combined", None, Sampling(temperature=1.0, seed=10)), detail=3))
    assert_the_same_in_a_batch(engine, [*requests, asked(6, "head", 2, Sampling()), asked(7, "none", 0, Sampling())])


def test_rounds_tell_of_every_token_offered(engine: Engine) -> None:
    for sampling in (Sampling(), Sampling(temperature=1.0, seed=4)):
        rounds = [each for each in engine.stream(asked(2, "head", 3, sampling)) if isinstance(each, Round)]
        assert any(each.drafted for each in rounds)
        for each in rounds:
            assert len(each.refused) in (0, each.tested)
            for place in range(each.tested):
                assert (each.u[place] * each.q[place] < each.p[place]) is (place < each.accepted)
