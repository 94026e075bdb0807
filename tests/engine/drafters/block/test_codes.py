"""Codes of a block drafter next to a quantised target, and of the output layer that scores its drafts."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from specchat.engine import Engine, EngineConfig, Request, Sampling
from specchat.engine.drafters.block.packed import short_copy
from specchat.engine.drafters.block.reading import LoadedBlock, load_block
from specchat.engine.kernels.packed_matrix import Format, QuantizedLinear, unpack
from specchat.engine.models.packed.load import PackedModel
from specchat.engine.worker.assembly import Assembly, assemble_loaded
from tests.engine import block_drafters
from tests.engine.drafters.models import pack as packed_model
from tests.engine.families import write_family
from tests.engine.tiny import VOCABULARY, ids_of, rounds_of, tiny_engine

pytestmark = pytest.mark.usefixtures("kernels", "one_thread")


@pytest.fixture
def target(tmp_path: Path) -> PackedModel:
    """A target with 8-bit codes that the drafters of `block_drafters` are for."""
    sizes = {"hidden_size": block_drafters.HIDDEN, "vocab_size": VOCABULARY, "num_hidden_layers": 8}
    return packed_model(write_family("llama", tmp_path / "target", **sizes), tmp_path)


@pytest.fixture
def block(target: PackedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LoadedBlock:
    """A drafter that the kernels can run."""
    for name, size in (("SIZE", 16), ("INNER", 96), ("RANK", 32)):
        monkeypatch.setattr(block_drafters, name, size)
    return load_block(block_drafters.write_block(tmp_path / "drafter", "dspark"), target)


@pytest.fixture
def every_layer_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specchat.engine.drafters.block.packed.LARGE", 0)


@pytest.mark.usefixtures("every_layer_is_large")
def test_logits_of_a_copy_are_off_by_its_rounding_at_most(target: PackedModel) -> None:
    copy, weights = short_copy(target.output), torch.from_numpy(unpack(target.output))
    assert copy is not None
    assert (copy.format, copy.shape) == (Format.Q4, target.output.shape)
    layer, groups = QuantizedLinear(copy), weights.unflatten(1, (-1, 32))
    step = (groups.amax(-1) - groups.amin(-1)) / 15
    rounding = (0.51 * step + 2e-3 * groups.abs().amax(-1)).repeat_interleave(32, 1)  # scale and minimum are float16
    assert ((layer.weight - weights).abs() <= rounding).all()
    x = torch.randn(7, weights.shape[1])
    inputs = x.abs().unflatten(1, (-1, 32)).amax(-1).repeat_interleave(32, 1) / 254  # codes of what it reads
    exact, bound = x @ weights.T, x.abs() @ rounding.T + inputs @ (weights.abs() + rounding).T
    assert ((layer(x) - exact).abs() <= bound).all()
    assert (layer(x) - exact).std() < 0.15 * exact.std()


def assembled(target: PackedModel, block: LoadedBlock) -> Assembly:
    return assemble_loaded(EngineConfig("tiny", Path(), slots=1, context=64), target, block=block)


@pytest.fixture
def engine(target: PackedModel, block: LoadedBlock) -> Iterator[Engine]:
    with tiny_engine(assemble=lambda config, _: assemble_loaded(config, target, block=block)) as started:
        yield started


@pytest.mark.usefixtures("every_layer_is_large")
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(repetition_penalty=1.3, presence_penalty=0.5)])
def test_greedy_replies_are_those_without_drafts(engine: Engine, sampling: Sampling) -> None:
    def reply(drafter: str) -> list[object]:
        asked = Request(drafter, prompt_ids=(5, 9, 70, 3), drafter=drafter, gamma=3, max_tokens=40, sampling=sampling)
        return list(engine.stream(asked))

    drafted = reply("block")
    assert sum(len(record.drafted) for record in rounds_of(drafted)) > 20
    assert ids_of(drafted) == ids_of(reply("none"))
