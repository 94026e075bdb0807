"""Families that the decoder does not know: transformers' modelling code with quantised linear layers in place."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants
from transformers.pytorch_utils import Conv1D

from specchat.engine.config import EngineConfig
from specchat.engine.kernels.packed_matrix import QuantizedEmbedding, QuantizedLinear
from specchat.engine.models.load import LoadedModel, load_model
from specchat.engine.models.packed.quantize import PLAIN, quantize
from specchat.engine.progress import ignore_progress
from specchat.engine.worker.obtain import make_runner, obtain_model
from tests.engine.families import write_other
from tests.engine.gguf_files import write_gguf

pytestmark = pytest.mark.usefixtures("kernels")


CPU = torch.device("cpu")


TOKENS = torch.arange(20, 44)[None]


def obtained(spec: Path, store: Path, quantize: str) -> LoadedModel:
    found = obtain_model(str(spec), EngineConfig(str(spec), store, quantize=quantize), CPU, ignore_progress)
    (notice,) = found.notices
    assert "runs slower than it could" in notice
    assert isinstance(found.model, LoadedModel)
    return found.model


def dequantized(model: LoadedModel, folder: Path) -> torch.nn.Module:
    """The float32 network with the weights that the quantised layers stand for."""
    plain = load_model(folder, CPU, torch.float32, ignore_progress).model
    modules = dict(plain.named_modules())
    for name, module in model.model.named_modules():
        if isinstance(module, QuantizedLinear | QuantizedEmbedding):
            weight = module.weight
            turned = weight.T if type(modules[name]) is Conv1D else weight
            assert (turned - modules[name].weight).abs().max() < 0.2 * modules[name].weight.abs().max()
            modules[name].weight.data.copy_(turned)
    return plain


@pytest.mark.parametrize("kind", ["gpt_neox", "stablelm", "olmo2", "gpt2"])
@pytest.mark.parametrize("method", ["q8", "q4"])
def test_logits_are_those_of_the_same_weights_in_float32(kind: str, method: str, tmp_path: Path) -> None:
    folder = write_other(kind, tmp_path / "model")
    model = obtained(folder, tmp_path / "store", method)
    assert (model.format, model.dtype) == (method.upper(), torch.float32)
    assert model.fingerprint == load_model(folder, CPU, torch.float32, ignore_progress).fingerprint
    assert not any(type(module) is torch.nn.Linear for module in model.model.modules())
    runner = make_runner(model, 2, 64, 8)
    found = runner.forward(TOKENS, [0], [0])
    expected = dequantized(model, folder)(TOKENS).logits
    gap = (found.log_softmax(-1) - expected.log_softmax(-1)).abs()
    assert gap.mean() < 0.03 * expected.std()  # activations of 8 bits
    assert (found.argmax(-1) == expected.argmax(-1)).float().mean() > 0.8  # nothing here is likely
    assert torch.equal(runner.embedding_rows(TOKENS), model.model.get_input_embeddings()(TOKENS))


def test_layers_know_nothing_of_the_rows_beside_them(tmp_path: Path) -> None:
    model = obtained(write_other("gpt_neox", tmp_path / "model"), tmp_path / "store", "q8")
    layers: list[Any] = [layer for layer in model.model.modules() if isinstance(layer, QuantizedLinear)]
    assert len(layers) > 8
    for layer in layers:
        x = torch.randn(3, 9, layer.in_features)
        assert torch.equal(layer(x)[1, 4:5], layer(x[1, 4:5]))


def test_a_gguf_file_keeps_its_codes(tmp_path: Path) -> None:
    folder = write_other("stablelm", tmp_path / "plain")
    more = {"attention__layer_norm_epsilon": 1e-5, "rope__dimension_count": 4}
    file = write_gguf("stablelm", folder, tmp_path / "tiny.gguf", lambda *_: GGMLQuantizationType.Q4_1, **more)
    model = obtained(file, tmp_path / "store", "auto")
    assert model.format == "Q4_1"
    assert model.name == "tiny"
    codes = model.model.get_submodule("model.layers.1.mlp.down_proj").weight
    weight = load_model(folder, CPU, torch.float32, ignore_progress).model.get_submodule("model.layers.1.mlp.down_proj")
    raw = quants.quantize(weight.weight.numpy(), GGMLQuantizationType.Q4_1)
    assert torch.equal(codes, torch.from_numpy(quants.dequantize(raw, GGMLQuantizationType.Q4_1)))
    found = make_runner(model, 1, 64, 8).forward(TOKENS, [0], [0])
    assert torch.isfinite(found).all()


@pytest.mark.parametrize("dtype", PLAIN)
def test_codes_are_the_nearest(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weights = torch.randn(40, 96) * 0.05
    weights[3], weights[4], weights[5] = 0, 1e-9, weights[5].abs()  # no scale, one that is no number, all positive
    weights = weights.to(dtype)
    groups = weights.float().numpy().reshape(40, 3, 32)

    eight = quantize(weights, "q8")
    scale = (np.abs(groups).max(-1) / np.float32(127)).astype(np.float16)
    assert np.array_equal(eight.scale, scale)
    assert np.array_equal(eight.codes.reshape(groups.shape), np.rint(groups * inverse(scale)).clip(-127, 127))

    four = quantize(weights, "q4")
    minimum = groups.min(-1).astype(np.float16)
    above = groups - minimum.astype(np.float32)[..., None]
    scale = (above.max(-1) / np.float32(15)).astype(np.float16)
    assert np.array_equal(four.minimum, minimum)
    assert np.array_equal(four.scale, scale)
    assert np.array_equal(four.codes.reshape(groups.shape), np.rint(above * inverse(scale)).clip(0, 15))


@pytest.mark.parametrize("method", ["q8", "q4"])
def test_threads_give_a_large_matrix_the_codes_of_its_rows(method: str) -> None:
    weights = torch.randn(40001, 96, generator=torch.Generator().manual_seed(0))
    whole, rows = quantize(weights, method), [7, 15000, 40000]
    for name in ("codes", "scale", "minimum"):
        of_rows = getattr(quantize(weights[rows], method), name)
        assert of_rows is None or np.array_equal(getattr(whole, name)[rows], of_rows)


def inverse(scale: np.ndarray) -> np.ndarray:
    plain = scale.astype(np.float32)[..., None]
    return np.divide(np.float32(1), plain, out=np.zeros_like(plain), where=plain != 0)
