"""Layers of a GPU whose weights stay codes, on the pretended device."""

import re
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from specchat.engine import EngineConfig
from specchat.engine.kernels.packed_matrix import Format
from specchat.engine.models import formats
from specchat.engine.models.load import load_model
from specchat.engine.models.packed import gpu_layers, network
from specchat.engine.models.packed.gpu_layers import GpuQuantizedEmbedding, GpuQuantizedLinear, choose_products, fits
from specchat.engine.progress import ignore_progress
from specchat.engine.worker.obtain import make_runner, obtain_model
from tests.engine.families import write_other
from tests.engine.kernels.matrices import QUANTISED, random_arrays
from tests.engine.pretend_cuda import GPU, pretended_gpu
from tests.failing import fails

pytestmark = pytest.mark.usefixtures("kernels")
CPU = torch.device("cpu")
TOKENS = torch.arange(20, 44)[None]
ROWS, COLUMNS = 32, 512
BITS = {Format.Q4: 5, Format.Q4_SUPER: 5, **dict.fromkeys(range(Format.Q8, Format.BF16), 10)}
"""Bits of a weight: its codes, and per 32 the scale and zero of each 4-bit matrix."""


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.gpu)], ids=["pretended", "real"])
@pytest.mark.parametrize("kind", QUANTISED)
def test_layers_compute_with_the_stored_weights(kind: Format, real: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_layers, "AT_ONCE", 5 * COLUMNS)
    with nullcontext() if real else pretended_gpu(monkeypatch):
        compare(kind, torch.device("cuda", 0))


def compare(kind: Format, device: torch.device) -> None:
    """A linear layer and an embedding against the weights in float32."""
    arrays, weights = random_arrays(kind, ROWS, COLUMNS)
    assert fits(arrays)
    x, bias, tokens = torch.randn(5, COLUMNS).bfloat16(), torch.randn(ROWS), torch.tensor([[3, 31], [0, 3]])
    layer, table = GpuQuantizedLinear(arrays, bias, device), GpuQuantizedEmbedding(arrays, device)
    found, rows, weight = layer(x.to(device)).cpu(), table(tokens.to(device)).cpu(), layer.weight.cpu()
    assert layer.bytes - bias.nbytes / 2 == ROWS * COLUMNS * BITS[arrays.format] / 8
    wanted = torch.from_numpy(weights)
    # bfloat16 has eight bits, and scales per 16 columns become scales per 32
    assert (weight - wanted).abs().max() < 0.012 * wanted.abs().max()
    assert (rows - wanted[tokens]).abs().max() < 0.012 * wanted.abs().max()
    expected = x.float() @ wanted.T + bias
    layer.dequantized_from = len(x)
    for result in (found, layer(x.to(device)).cpu()):
        assert (result - expected).abs().max() < 0.02 * expected.abs().max()


@pytest.mark.daily(2)
@pytest.mark.parametrize("kind", ["gpt_neox", "olmo2", "gpt2"])
@pytest.mark.parametrize("method", ["q8", "q4"])
def test_a_network_runs_on_its_codes(kind: str, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_other(kind, tmp_path / "model")
    plain = load_model(folder, CPU, torch.float32, ignore_progress)
    expected = plain.model(TOKENS).logits
    # loaded before: transformers makes buffers in a mode of torch's functions, as the pretended device is one
    monkeypatch.setattr(network, "load_model", lambda *_: plain)
    with pretended_gpu(monkeypatch):
        config = EngineConfig(str(folder), tmp_path / "store", quantize=method)
        found = obtain_model(str(folder), config, GPU, ignore_progress)
        assert found.notices == ()
        model = found.model
        assert (model.format, model.dtype) == (method.upper(), torch.bfloat16)
        assert any(isinstance(module, GpuQuantizedLinear) for module in model.model.modules())
        runner = make_runner(model, 2, 64, 8)
        found = runner.forward(TOKENS.to(GPU), [1], [0]).cpu().float()
    gap = (found.log_softmax(-1) - expected.log_softmax(-1)).abs()
    assert gap.mean() < (0.03 if method == "q8" else 0.3) * expected.std()


def test_layers_whose_copy_is_wrong_or_fails_keep_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_layers, "seconds_of", lambda product, _: len(product.__name__) == len("product"))
    with pretended_gpu(monkeypatch):
        for copied, dequantizes in (
            (gpu_layers.dequantized, True),
            (lambda p: -gpu_layers.dequantized(p), False),
            (fails(RuntimeError("no compiler")), False),
        ):
            monkeypatch.setattr(gpu_layers, "compiled", lambda copied=copied: copied)
            layer = GpuQuantizedLinear(random_arrays(Format.Q4, ROWS, COLUMNS)[0], None, GPU)
            choose_products([layer])
            assert (layer.dequantized_from < 1 << 20) is dequantizes


def test_a_gpu_whose_kernel_fails_or_errs_runs_dequantised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_other("olmo2", tmp_path / "model")
    for number, (stand_in, sentence) in enumerate(
        (
            (fails(RuntimeError("no kernel image")), r"does not run on cuda:0 \(no kernel image\)"),
            (lambda x, *_: x[:, :16] * 0, "gives wrong numbers"),
        )
    ):
        with pretended_gpu(monkeypatch):
            monkeypatch.setattr(torch, "_weight_int4pack_mm", stand_in)
            config = EngineConfig(str(folder), tmp_path / str(number), quantize="q4")
            monkeypatch.setattr(formats, "shared_model", lambda folder, *_: load_model(folder, CPU, *_[1:]))
            found = obtain_model(str(folder), config, GPU, ignore_progress)
        assert re.search(sentence, found.notices[0])
        assert not any(isinstance(module, GpuQuantizedLinear) for module in found.model.model.modules())
