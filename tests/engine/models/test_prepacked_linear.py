"""Packed layers give what plain ones give, and nothing else of a network changes."""

import pytest
import torch
from torch import nn

from specchat.engine.models.linear_layers import PrepackedLinear, can_prepack, pack, prepacked_linear
from specchat.engine.models.load import fingerprint, weight_bytes
from tests.engine.tiny import tiny_model

pytestmark = pytest.mark.skipif(
    not can_prepack(torch.zeros(1, dtype=torch.bfloat16)), reason="this processor has no kernels for packed weights"
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("tokens", [1, 13, 200])
def test_a_packed_layer_gives_the_same_numbers(tokens: int, bias: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    plain = nn.Linear(96, 80, bias=bias).to(dtype).requires_grad_(False)
    layer, x = PrepackedLinear(plain), torch.randn(2, tokens, 96, dtype=dtype)
    torch.testing.assert_close(layer(x), plain(x))
    assert torch.equal(layer.weight, plain.weight)
    assert layer.bytes == plain.weight.nbytes
    torch.testing.assert_close(prepacked_linear(plain.weight)(x[..., :1, :]), x[..., :1, :] @ plain.weight.T)


def test_a_packed_network_is_the_same_network() -> None:
    plain, packed = tiny_model().model, tiny_model().model
    tokens = torch.randint(0, 250, (2, 9))
    mark = fingerprint(packed)
    pack(packed)
    assert weight_bytes(packed) == weight_bytes(plain), "each weight is there once"
    assert not any(type(module) is nn.Linear for module in packed.modules())
    torch.testing.assert_close(packed(tokens).logits, plain(tokens).logits, rtol=1e-4, atol=1e-4)
    assert fingerprint(packed) == mark == fingerprint(plain)


def test_a_weight_that_something_else_uses_is_kept_beside_its_copy() -> None:
    network = nn.ModuleDict({"embedding": nn.Embedding(50, 32), "out": nn.Linear(32, 50, bias=False)})
    network["out"].weight = network["embedding"].weight
    pack(network.requires_grad_(False))
    assert weight_bytes(network) == 2 * 50 * 32 * 4
    assert torch.equal(network["out"].weight, network["embedding"].weight)


def test_other_number_types_stay_plain() -> None:
    network = nn.Sequential(nn.Linear(8, 8)).half()
    pack(network)
    assert type(network[0]) is nn.Linear
    assert type(prepacked_linear(torch.zeros(4, 4, dtype=torch.float16))) is nn.Linear
