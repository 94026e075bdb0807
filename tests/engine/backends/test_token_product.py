"""The Triton kernel for products of one token, and when it is used."""

from typing import Any

import pytest
import torch
from torch import nn
from transformers import Gemma3ForCausalLM, GptOssForCausalLM, LlamaForCausalLM

from specchat.engine.backends import token_product
from specchat.engine.backends.fused_products import FuseProducts
from specchat.engine.backends.token_product import TokenLinear, multiply, use_token_kernel
from specchat.engine.backends.transformers_backend import TransformersBackend
from specchat.engine.device import gpu
from specchat.engine.models.linear_layers import join_layers
from tests.engine.backends.triton_kernels import CAPABILITIES, DEVICES, DTYPES, NEEDS_COMPILER, shared_memory
from tests.engine.tiny import tiny_model

SHAPES = [(40, 600), (3072, 2048), (100, 14336), (7, 48), (33, 8000)]
"""Outputs and inputs; some fill no block."""
SIZES = {
    "vocab_size": 260, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8,
    "num_local_experts": 4, "num_experts_per_tok": 2,
}  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("parts", ["", "bias", "addend", "bias gated", "addend gated"])
@torch.inference_mode()
def test_the_kernel_computes_what_torch_computes(shape: tuple[int, int], device: str, parts: str) -> None:
    from specchat.engine.backends.token_product_kernel import launch

    draw, gated = torch.Generator().manual_seed(0), "gated" in parts
    lines = 2 * shape[0] if gated else shape[0]
    sizes = {"x": (1, 1, shape[1]), "weight": (lines, shape[1]), "bias": (lines,), "addend": (1, 1, shape[0])}
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        drawn = {name: torch.randn(size, generator=draw).to(dtype) for name, size in sizes.items()}
        given = {name: each if name in f"x weight {parts}" else None for name, each in drawn.items()}
        expected = multiply(*(each if each is None else each.double() for each in given.values()), gated)
        found = launch(*(each if each is None else each.to(device) for each in given.values()), gated=gated)
        assert found.shape == (1, 1, shape[0])
        gap = (found.cpu().double() - expected).norm() / expected.norm()
        assert (
            gap < {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
        )  # Triton's interpreter does not round to it


@NEEDS_COMPILER
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("outputs", [4, 2], ids=["plain", "gated"])
def test_the_kernel_compiles_without_a_gpu(outputs: int, dtype: str, capability: int) -> None:
    from specchat.engine.backends.token_product_kernel import _multiply

    fixed = {"lines": 4, "outputs": outputs, "step": 2048, "biased": True, "added": True, "early": capability >= 90}
    kinds = dict.fromkeys(("token", "weight", "bias", "addend", "out"), f"*{dtype}")
    assert shared_memory(_multiply, kinds, fixed, capability, num_warps=4) < 48 * 1024


@pytest.fixture
def on_a_pretended_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every device has the kernel, which computes as the operator does on a CPU."""
    monkeypatch.setattr(gpu, "has_triton", lambda _: True)
    token_product.kernel_fault.cache_clear()
    yield
    token_product.kernel_fault.cache_clear()


@pytest.mark.usefixtures("on_a_pretended_gpu")
@pytest.mark.parametrize("broken", ["raises", "wrong"])
def test_a_kernel_that_fails_is_not_used(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def instead(x: torch.Tensor, *given: Any) -> torch.Tensor:
        if broken == "raises":
            raise RuntimeError("no such instruction.\nMore.")
        return multiply(x, *given) + 1

    monkeypatch.setattr(token_product, "multiply", instead)
    layer = nn.Linear(16, 8)
    assert use_token_kernel(layer) == {"raises": "no such instruction", "wrong": "its results are wrong"}[broken]
    assert type(layer) is nn.Linear


PLAIN = (False, False)
"""A product without addend and gate."""


@pytest.mark.usefixtures("on_a_pretended_gpu")
@pytest.mark.parametrize(
    ("kind", "products"),
    [
        (LlamaForCausalLM, [PLAIN, (True, False), (False, True), (True, False)]),
        (Gemma3ForCausalLM, [PLAIN] * 4),  # its gate is a GELU, and norms come before its residuals
        (GptOssForCausalLM, [PLAIN, (True, False)]),  # its experts add their biases in place
    ],
)
@torch.inference_mode()
def test_gate_and_residuals_of_a_compiled_layer_are_part_of_its_products(kind: Any, products: list[Any]) -> None:
    torch.manual_seed(0)
    network = kind(kind.config_class(**SIZES)).eval().requires_grad_(False)
    for name, each in network.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(each)
    join_layers(network)
    assert use_token_kernel(network) is None
    layer, state = network.base_model.layers[0], torch.randn(1, 1, 32)
    rotary = torch.randn(2, 1, 1, 4 if kind is GptOssForCausalLM else 8).unbind()
    found = []

    def rewritten(module: torch.fx.GraphModule, _: Any) -> Any:
        FuseProducts()(module.graph)
        module.graph.lint()
        module.recompile()
        calls = [node for node in module.graph.nodes if node.target is torch.ops.specchat.multiply.default]
        for call in calls:
            addend, gated = (*call.args[3:], None, False)[:2]
            found.append((addend is not None, gated))
        return module.forward

    torch._dynamo.reset()
    compiled = torch.compile(type(layer).forward, backend=rewritten, fullgraph=True)
    given = {"position_embeddings": rotary, "attention_mask": None}
    torch.testing.assert_close(compiled(layer, state, **given), layer(state, **given))
    assert found == products


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
            x = multiply(x, weight, None, x)
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
