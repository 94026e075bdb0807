"""The Triton kernel for products of one token, and when it is used."""

from typing import Any

import pytest
import torch
from torch import nn

from specchat.engine.backends import token_product
from specchat.engine.backends.token_product import TokenLinear, multiply, use_token_kernel
from specchat.engine.backends.transformers_backend import TransformersBackend
from specchat.engine.device import gpu
from tests.engine.backends.triton_kernels import CAPABILITIES, DEVICES, DTYPES, NEEDS_COMPILER, shared_memory
from tests.engine.tiny import tiny_model

SHAPES = [(40, 600), (3072, 2048), (100, 14336), (7, 48), (33, 8000)]
"""Outputs and inputs; some fill no block."""


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("biased", [False, True])
@torch.inference_mode()
def test_the_kernel_computes_what_torch_computes(shape: tuple[int, int], device: str, *, biased: bool) -> None:
    from specchat.engine.backends.token_product_kernel import launch

    draw = torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x, weight, bias = (torch.randn(size, generator=draw).to(dtype) for size in ((1, 1, shape[1]), shape, shape[:1]))
        expected = nn.functional.linear(x.double(), weight.double(), bias.double() if biased else None)
        given = [each.to(device) for each in (x, weight, bias)]
        found = launch(given[0], given[1], given[2] if biased else None)
        assert found.shape == (1, 1, shape[0])
        gap = (found.cpu().double() - expected).norm() / expected.norm()
        assert gap < {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 5e-3}[dtype]


@NEEDS_COMPILER
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_the_kernel_compiles_without_a_gpu(dtype: str, capability: int) -> None:
    from specchat.engine.backends.token_product_kernel import _multiply

    fixed = {"lines": 4, "step": 2048, "biased": True, "early": capability >= 90}
    kinds = dict.fromkeys(("token", "weight", "bias", "out"), f"*{dtype}")
    assert shared_memory(_multiply, kinds, fixed, capability, num_warps=4) < 48 * 1024


@pytest.fixture
def on_a_pretended_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every device has the kernel, which computes as the operator does on a CPU."""
    monkeypatch.setattr(gpu, "has_triton", lambda _: True)
    token_product._fault.cache_clear()
    yield
    token_product._fault.cache_clear()


@pytest.mark.usefixtures("on_a_pretended_gpu")
@torch.inference_mode()
def test_the_kernel_computes_passes_over_one_token(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(token_product, "multiply", lambda x, *given: asked.append(x.shape) or multiply(x, *given))
    layer = nn.Linear(16, 8)
    other = nn.Linear(16, 8)
    other.load_state_dict(layer.state_dict())
    asked.clear()
    assert use_token_kernel(layer) is None
    for x in (torch.randn(1, 1, 16), torch.randn(1, 2, 16), torch.randn(2, 1, 16), torch.randn(16)):
        torch.testing.assert_close(layer(x), other(x))
    assert asked[1:] == [(1, 1, 16), (16,)], "after the check"


@pytest.mark.usefixtures("on_a_pretended_gpu")
@pytest.mark.parametrize("broken", ["raises", "wrong"])
def test_a_kernel_that_fails_is_not_used(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def instead(x: torch.Tensor, weight: torch.Tensor, bias: Any) -> torch.Tensor:
        if broken == "raises":
            raise RuntimeError("no such instruction.\nMore.")
        return multiply(x, weight, bias) + 1

    monkeypatch.setattr(token_product, "multiply", instead)
    layer = nn.Linear(16, 8)
    assert use_token_kernel(layer) == {"raises": "no such instruction", "wrong": "its results are wrong"}[broken]
    assert type(layer) is nn.Linear


@pytest.mark.gpu
@torch.inference_mode()
def test_a_network_on_a_gpu_uses_it() -> None:
    network: Any = tiny_model().model.to("cuda")
    runner = TransformersBackend(network, 2, 100, 17)
    assert runner.performance_warnings == []
    kinds = {type(part) for part in network.modules() if isinstance(part, nn.Linear)}
    assert kinds == {TokenLinear}


@pytest.mark.gpu
@torch.inference_mode()
def test_a_product_that_starts_early_reads_what_came_before(monkeypatch: pytest.MonkeyPatch) -> None:
    from specchat.engine.backends import token_product_kernel

    draw, device = torch.Generator().manual_seed(0), torch.device("cuda")
    weights = [(torch.randn(2048, 2048, generator=draw) / 45).to(device, torch.bfloat16) for _ in range(8)]
    token = torch.randn(1, 2048, generator=draw).to(device, torch.bfloat16)

    def chained() -> torch.Tensor:
        x = token
        for weight in weights:
            x = multiply(x, weight, None)
        return x

    with monkeypatch.context() as patch:
        patch.setattr(token_product_kernel, "starts_early", lambda _: False)
        expected = chained().cpu()
    chained()  # compiles it
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = chained()
    for _ in range(200):
        token.mul_(-1)
        graph.replay()
        token.mul_(-1)
        graph.replay()
        assert torch.equal(found.cpu(), expected)
