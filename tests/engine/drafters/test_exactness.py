"""Every drafter next to tiny models: exact whatever it drafts, and the same alone and in any batch."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from specchat.engine import Engine, EngineConfig, Notice, Request, Round, Sampling
from specchat.engine.backends.kernel_drafting import KernelDrafting
from specchat.engine.backends.packed import PackedBackend
from specchat.engine.drafters.block.network import BlockNetwork
from specchat.engine.drafters.block.reading import LoadedBlock, load_block
from specchat.engine.drafters.block.shape import BlockShape
from specchat.engine.drafters.head.folder import LoadedHead
from specchat.engine.drafters.head.network import DraftHead, HeadShape
from specchat.engine.drafters.published.load import load_published
from specchat.engine.kernels.library import KernelError
from specchat.engine.models.load import LoadedModel
from specchat.engine.models.packed.load import PackedModel
from specchat.engine.models.packed.quantize import quantize_network
from specchat.engine.research.pass_drafter import LookAhead
from specchat.engine.worker.assembly import assemble_loaded
from tests.engine.block_drafters import write_block
from tests.engine.drafters.models import pack, packed_family, related
from tests.engine.published_heads import KINDS, LAYERS, write
from tests.engine.sampled import check_distribution, draw_drafts_of_seeds, sampled, says
from tests.engine.sampling.plainly import mixed, names, penalised
from tests.engine.tiny import (
    assert_the_same_in_a_batch,
    ids_of,
    rounds_of,
    tiny_head,
    tiny_model,
    tiny_tables,
)
from tests.failing import fails

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPT = (104, 105, 33, 104, 105, 33, 104, 105)
"""It repeats itself, so that the text drafts from the first token on."""


@dataclass
class Setup:
    """A target with what drafts for it."""

    drafters: Sequence[str]
    target: LoadedModel | PackedModel
    parts: dict[str, object]
    p: Callable[[list[int]], Tensor]
    """The target's own distribution after tokens."""
    engine: Engine = field(init=False)

    def __post_init__(self) -> None:
        config = EngineConfig("tiny", Path(), slots=8, context=200, prefill_chunk=32, queue=4000)
        self.engine = Engine(config, lambda *_: assemble_loaded(config, self.target, **self.parts))  # type: ignore[arg-type]
        self.engine.start()
        self.engine.wait_ready(60)

    def ask(self, number: int, drafter: str, gamma: int | None, sampling: Sampling) -> Request:
        prompt = tuple(3 + (number * 31 + 7 * i) % 250 for i in range(5 + 9 * number))
        prompt = prompt if number else PROMPT * 3
        name = f"{number} {drafter} {gamma} {sampling}"
        return Request(name, prompt_ids=prompt, drafter=drafter, gamma=gamma, max_tokens=20, sampling=sampling)


def tiny(drafters: Sequence[str], sharpness: float, **parts: object) -> Setup:
    return Setup(drafters, tiny_model(sharpness=sharpness), parts, says(tiny_model(sharpness=sharpness)))


def with_head(_: Path) -> Setup:
    # A head that knows 30 of 260 tokens is wrong most of the time: the residual has to make up for it.
    return tiny(("head", "combined"), 4.0, head=tiny_head(tiny_model(), vocabulary=30))


def with_published(folder: Path, kind: str) -> Setup:
    target, plain = (tiny_model(layers=LAYERS, sharpness=4.0) for _ in range(2))
    head = load_published(write(folder, *KINDS[kind][0]()), target)
    return Setup(("head",), target, {"head": head}, says(plain))


def with_block(folder: Path, kind: str = "dspark") -> Setup:
    target, plain = (tiny_model(layers=LAYERS, sharpness=4.0) for _ in range(2))
    block = load_block(write_block(folder / "drafter", kind), target)
    return Setup(("block", "combined"), target, {"block": block}, says(plain))


def with_models(_: Path) -> Setup:
    names = ("model", "model-tree", "hierarchical", "merged")
    return tiny(names, 20.0, draft=related(0.5, 40.0), more=[related(0.4, 45.0, seed=10)])


def with_look_ahead(_: Path) -> Setup:
    """Embeddings of tokens, which predict right now and then."""
    rows = tiny_model().model.get_input_embeddings().weight[97:100].detach().float().clone()
    return tiny(("pass",), 25.0, look_ahead=LookAhead(rows, "tiny look-ahead"))


def with_tables(_: Path) -> Setup:
    names = ("bigram", "unigram", "copy", "random", "ngram", "suffix")
    return tiny(names, 12.0, tables=tiny_tables(b"hi! the hi! of the hi! and a hi! or two hi! again, hi!"))


def packed(folder: Path, kind: str, family: str = "llama") -> Setup:
    model = packed_family(family, folder)
    target = PackedBackend(model, 1, 200, 17)

    @torch.inference_mode()
    def p(tokens: list[int]) -> Tensor:
        return target.forward(torch.tensor([tokens]), [0], [0])[0, -1].softmax(-1)

    if kind == "models":
        return Setup(("model", "model-tree"), model, {"draft": pack(folder / "llama", folder, "q4")}, p)
    if kind == "pass":
        rows = torch.from_numpy(model.embedding.rows_of(torch.arange(50, 53).numpy()))
        return Setup(("pass",), model, {"look_ahead": LookAhead(rows, "some")}, p)
    torch.manual_seed(1)
    head = DraftHead(HeadShape(64, 4, 2, 16, 96, (1, 2, 3), 10000.0, 1e-5)).eval().requires_grad_(False)
    quantize_network(head)
    known = torch.randperm(model.vocab_size)[:200].sort().values
    return Setup(("head", "combined", "suffix"), model, {"head": LoadedHead(head, known, "head", 1)}, p)


def packed_block(folder: Path, family: str = "llama", kind: str = "dspark") -> Setup:
    """A block drafter with 8-bit codes: DSpark, which knows a part of the vocabulary, or DFlash 2."""
    made = packed(folder, "head", family)
    made.engine.close()
    torch.manual_seed(1)
    frequencies = tuple((10000.0 ** -(torch.arange(0, 16, 2) / 16)).tolist())
    shape = BlockShape(
        hidden=64, intermediate=96, heads=4, key_heads=2, head_size=16, epsilon=1e-5, frequencies=frequencies,
        rotation_factor=1.0, windows=(None, 9), causal=(False, True), rows=5, first=0, mask=3, taps=(1, 2),
        vocabulary=made.target.vocab_size, draft_vocabulary=200, markov_rank=32, confidence=True,
    )  # fmt: skip
    if kind == "dflash 2":
        more = {"kernel": 2, "kernel_group": 16, "selector_rank": 32, "candidates": 5}
        shape = replace(shape, first=1, draft_vocabulary=shape.vocabulary, markov_rank=0, confidence=False, **more)
    network = BlockNetwork(shape).eval().requires_grad_(False)
    for name, weight in network.named_parameters():
        if "base_kernel" in name:
            weight.normal_(1.0, 0.2)
    quantize_network(network)
    known = torch.randperm(made.target.vocab_size)[: shape.draft_vocabulary].sort().values
    return Setup(("block", "combined"), made.target, {"block": LoadedBlock(network, known, "block", 1)}, made.p)


SETUPS: dict[str, Callable[[Path], Setup]] = {
    "head": with_head, "block": with_block, "draft models": with_models, "look-ahead": with_look_ahead,
    "packed head": lambda folder: packed(folder, "head"), "packed block": packed_block,
    "packed block, hybrid target": lambda folder: packed_block(folder, "lfm2"),
    "packed draft model": lambda folder: packed(folder, "models"),
    "packed look-ahead": lambda folder: packed(folder, "pass"), "tables and text": with_tables,
}  # fmt: skip
SLOW: dict[str, Callable[[Path], Setup]] = {
    **{kind: partial(with_published, kind=kind) for kind in ("eagle-3", "medusa")},
    **{kind: partial(with_block, kind=kind) for kind in ("dflash sliding", "dflash 2", "speculators dflash")},
    "packed dflash 2": partial(packed_block, kind="dflash 2"),
}


@pytest.fixture(scope="module", params=[*SETUPS, *(pytest.param(kind, marks=pytest.mark.slow) for kind in SLOW)])
def setup(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    made = (SETUPS | SLOW)[request.param](tmp_path_factory.mktemp("setup"))
    yield made
    made.engine.close()


@pytest.mark.daily(8)
@pytest.mark.parametrize(
    ("gamma", "sampling"),
    [
        (None, Sampling()),
        (None, Sampling(dry_multiplier=0.8)),
        (4, Sampling(repetition_penalty=1.3, presence_penalty=0.5, logit_bias=((101, 3.0),))),
        pytest.param(12, Sampling(), marks=pytest.mark.slow),
    ],
)
def test_greedy_replies_are_the_targets_own(setup: Setup, gamma: int | None, sampling: Sampling) -> None:
    for number in range(2):
        plain = ids_of(setup.engine.stream(setup.ask(number, "none", None, sampling)))
        for drafter in setup.drafters:
            assert ids_of(setup.engine.stream(setup.ask(number, drafter, gamma, sampling))) == plain


@pytest.mark.daily(3)
@pytest.mark.parametrize("gamma", [pytest.param(None, marks=pytest.mark.slow), 4])
def test_sampled_replies_to_a_seed_are_the_targets_own(setup: Setup, gamma: int | None) -> None:
    """Each position's number draws its token, whatever is drafted."""
    kinds = [
        Sampling(temperature=1.0, seed=1),
        Sampling(temperature=0.8, top_k=20, top_p=0.95, seed=2),
        Sampling(temperature=1.2, xtc_probability=0.5, xtc_threshold=0.05, repetition_penalty=1.2, seed=3),
    ]
    for number, sampling in enumerate(kinds):
        plain = ids_of(setup.engine.stream(setup.ask(number, "none", None, sampling)))
        for drafter in setup.drafters:
            assert ids_of(setup.engine.stream(setup.ask(number, drafter, gamma, sampling))) == plain, drafter


@pytest.mark.parametrize(("drafter", "kind"), [("combined", "head"), ("model-tree", "models")])
def test_trees_that_cannot_grow_cost_the_drafts(
    drafter: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = packed(tmp_path, kind)
    with closing(made.engine):
        monkeypatch.setattr(KernelDrafting, "write_to", fails(KernelError("it has no leaves")))
        plain = ids_of(made.engine.stream(made.ask(1, "none", None, Sampling())))
        events = list(made.engine.stream(made.ask(1, drafter, 4, Sampling())))
    told = [event.text for event in events if isinstance(event, Notice)]
    assert told == [f"the {drafter} drafter failed (it has no leaves): it drafts no more for this reply"]
    assert ids_of(events) == plain
    assert rounds_of(events)[-1].drafter == "none"


@pytest.mark.daily(3)
@pytest.mark.parametrize(
    "drawn",
    [False, pytest.param(True, marks=pytest.mark.slow)],
    ids=["the likeliest drafts", "drawn drafts"],
)
def test_a_reply_is_the_same_alone_and_in_any_batch(setup: Setup, drawn: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy, sampled and filtered rows, next to chains, which penalties, lenience or a long γ require."""
    if drawn:
        draw_drafts_of_seeds(monkeypatch)
    kinds: list[tuple[int | None, Sampling]] = [
        (3, Sampling()),
        (3 if drawn else None, Sampling(temperature=1, seed=1)),  # γ that adapts changes what is drawn
        (12, Sampling(temperature=1, seed=2)),
        (4, Sampling(temperature=0.7, seed=3, top_k=2)),
        (4, Sampling(temperature=1, seed=4, repetition_penalty=1.2)),
        (4, Sampling(temperature=1, seed=6, dry_multiplier=0.8, xtc_probability=0.5)),
        (2, Sampling(temperature=1, seed=5, lenience=0.5)),
    ]
    requests = [
        setup.ask(number, drafter, gamma, sampling)
        for place, drafter in enumerate(setup.drafters)
        for number, (gamma, sampling) in enumerate(kinds)
        if len(setup.drafters) < 3 or (place + number) % 2  # of many drafters each has half of the kinds
    ]
    others = [setup.ask(7, "suffix", 4, Sampling()), setup.ask(8, "none", 0, Sampling(temperature=1, seed=8))]
    assert_the_same_in_a_batch(setup.engine, requests + others)


@pytest.mark.daily(5)
@pytest.mark.parametrize(
    "sampling",
    [Sampling(), Sampling(temperature=1.0), Sampling(temperature=1.0, seed=4)],
    ids=["greedy", "sampled", "seeded"],
)
def test_rounds_tell_of_every_token_that_was_tested(setup: Setup, sampling: Sampling) -> None:
    for drafter in setup.drafters:
        events = setup.engine.stream(setup.ask(0, drafter, 3, sampling))
        rounds = rounds_of(events)
        assert any(each.drafted for each in rounds)
        for each in rounds:
            assert len(each.refused) in (0, each.tested)
            for place in range(each.tested):
                assert (each.u[place] * each.q[place] < each.p[place]) is (place < each.accepted)


@pytest.mark.daily(3)
@pytest.mark.parametrize("count", [150, pytest.param(600, marks=pytest.mark.slow)])
def test_sampled_replies_have_the_targets_distribution(setup: Setup, count: int) -> None:
    for drafter in setup.drafters:
        events = sampled(setup.engine, drafter, PROMPT, count)
        rounds = [event for each in events for event in each if isinstance(event, Round)]
        assert sum(record.tested for record in rounds) > 0
        assert sum(record.accepted for record in rounds) < sum(record.tested for record in rounds)
        assert check_distribution(events, PROMPT, setup.p, least=50)


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0, dry_multiplier=0.6, dry_sequence_breakers=()),
        Sampling(temperature=1.0, xtc_probability=0.6),
    ],
    ids=["dry", "xtc"],
)
def test_dry_and_xtc_give_their_distribution(setup: Setup, sampling: Sampling) -> None:
    """DRY is computed from a text. XTC's draws are unknown: each position is one of two distributions."""
    third = float(setup.p([*PROMPT]).topk(3).values[-1])
    sampling = replace(sampling, xtc_threshold=min(0.9 * third, 0.3))

    def p(text: list[int]) -> Tensor:
        own = setup.p(text)
        if sampling.dry:
            return penalised(own.log(), sampling, text, names).softmax(-1)
        return mixed(own, sampling)

    for drafter in setup.drafters[-2:]:
        events = sampled(setup.engine, drafter, PROMPT, 300, sampling=sampling)
        assert sum(event.tested for each in events for event in each if isinstance(event, Round)) > 0
        assert check_distribution(events, PROMPT, p, least=50)
