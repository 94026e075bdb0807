"""Passes on packed weights: close to float32 for every family, and the same bits wherever a token stands."""

from pathlib import Path

import pytest
import torch

from specchat.engine.backends.packed import PackedBackend
from specchat.engine.decoding.tree import Tree
from specchat.engine.errors import EngineError
from specchat.engine.models.load import load_model
from specchat.engine.models.packed.load import PackedModel, load_dequantized
from specchat.engine.progress import ignore_progress
from tests.engine.drafters.models import pack, packed_family
from tests.engine.families import FAMILIES, write_family, write_with_images
from tests.engine.scored import places
from tests.engine.tiny import assert_drafters_agree, tiny_engine

pytestmark = pytest.mark.usefixtures("kernels")
CPU = torch.device("cpu")
TOKENS = torch.arange(3, 43) * 7 % 317 + 3


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> PackedModel:
    return packed_family("qwen3", tmp_path_factory.mktemp("qwen"))


def runner(model: PackedModel, context: int = 120, taps: tuple[int, ...] = ()) -> PackedBackend:
    return PackedBackend(model, 4, context, 17, taps)


@pytest.mark.daily(14)
@pytest.mark.parametrize("quantize", ["q8", pytest.param("q4", marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_states_are_those_of_the_dequantised_network(family: str, quantize: str, tmp_path: Path) -> None:
    folder = write_family(family, tmp_path / family)
    model = pack(folder, tmp_path, quantize)
    reference = load_dequantized(model, folder, ignore_progress)
    with torch.inference_mode():
        expected = reference.model(TOKENS[None], output_hidden_states=True)
    logits, tapped = runner(model, taps=(0, 1, 3)).forward_with_states(TOKENS[None], [2], [0])
    for depth, states in zip((0, 1, 3), tapped.chunk(3, dim=-1), strict=True):
        error = (states - expected.hidden_states[depth]).norm() / expected.hidden_states[depth].norm()
        assert error < (1e-6 if depth == 0 else 0.1), f"depth {depth}: {error}"
    p, q = expected.logits.log_softmax(-1), logits.log_softmax(-1)
    kl = (p.exp() * (p - q)).sum(-1)
    assert kl.mean() < 0.02 * -(p.exp() * p).sum(-1).mean(), kl
    assert (p.argmax(-1) == q.argmax(-1)).float().mean() >= 0.8


def test_the_text_part_of_a_model_that_reads_images_is_packed(tmp_path: Path) -> None:
    text = write_family("gemma4", tmp_path / "text")
    whole = write_with_images(text, tmp_path / "whole")
    models = [pack(folder, tmp_path) for folder in (text, whole)]
    loaded = [load_model(folder, CPU, torch.float32, ignore_progress) for folder in (text, whole)]
    assert len({model.fingerprint for model in (*models, *loaded)}) == 1
    assert torch.equal(*(runner(model).forward(TOKENS[None], [2], [0]) for model in models))
    loaded[0] = load_dequantized(models[0], whole, ignore_progress)
    loaded[1] = load_dequantized(models[1], text, ignore_progress)
    with torch.inference_mode():
        assert torch.equal(*(each.model(TOKENS[None]).logits for each in loaded))


@pytest.mark.parametrize("context", [100, 200])
def test_a_context_has_one_set_of_longrope_factors(context: int, tmp_path: Path) -> None:
    folder = write_family("phi3-long", tmp_path / "phi")
    model = pack(folder, tmp_path)
    reference = load_dequantized(model, folder, ignore_progress)
    mine = runner(model, context)
    positions = mine.cache.columns
    with torch.inference_mode():
        cosines, sines = reference.model.model.rotary_emb(torch.zeros(1), torch.arange(positions)[None])
    ours = [torch.from_numpy(part) for part in model.described.rotaries[0].table(context, positions)]
    pairs = ours[0].shape[1]
    torch.testing.assert_close(ours[0], cosines[0, :, :pairs])
    torch.testing.assert_close(ours[1], sines[0, :, :pairs])


def test_a_tree_that_is_read_in_parts_has_the_bits_of_chains(qwen: PackedModel) -> None:
    mine, start = runner(qwen), 20
    mine.prefill(TOKENS[None, :start].repeat(2, 1), [0, 1], [0, 0])
    tree = Tree((0, 0, 0, 0, 0, 0, 2, 3, 3, 8))
    fed = torch.arange(len(tree) + 1) * 13 % 300 + 5
    root = mine.forward(fed[None, :1], [0], [start])[0].clone()
    parts = [mine.extend(places(tree, fed, 0, start)[a:b]).clone() for a, b in ((0, 6), (6, 10))]
    for end, logits in enumerate(torch.cat([root, *parts])):
        alone = mine.forward(fed[None, [0, *tree.path(end)]], [1], [start])
        assert torch.equal(alone[0, -1], logits)


@pytest.mark.parametrize(
    ("family", "cache_type"),
    [
        *((each, "f16") for each in ("lfm2-moe", "gemma4-moe", "qwen3-moe", "ministral3", "gpt-oss-mxfp4")),
        *((each, "f16") for each in ("granite-hybrid", "lfm2", "qwen3.5", "granite-hybrid-moe", "qwen3.5-moe")),
        *((each, "q8") for each in ("gemma4", "gpt-oss-mxfp4", "qwen3.5")),
    ],
)
@pytest.mark.daily(4)
def test_greedy_replies_are_the_same_for_all_drafters_and_batches(family: str, cache_type: str, tmp_path: Path) -> None:
    model = packed_family(family, tmp_path)
    with tiny_engine(model, model, slots=3, chunk=8, cache_type=cache_type) as engine:  # type: ignore[arg-type]
        assert_drafters_agree(engine, ("suffix", "random", "model", "model-tree"))


def test_a_cache_that_does_not_fit_is_refused(qwen: PackedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specchat.engine.device.device.available_memory", lambda _: 1000)
    with pytest.raises(EngineError, match=r"a cache for a text of \d+ tokens needs"):
        runner(qwen)
