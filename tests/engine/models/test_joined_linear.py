"""Query, key and value, and gate and up projections by one product: they compute what they compute apart."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from specchat.engine.backends.transformers_backend import TransformersBackend
from specchat.engine.models.linear_layers import JoinedLinear, join_layers
from specchat.engine.models.load import fingerprint
from specchat.engine.models.packed.gpu_layers import GpuQuantizedLinear
from specchat.engine.models.packed.quantize import quantize
from tests.engine.pretend_cuda import GPU, pretended_gpu, to_gpu
from tests.engine.tiny import SIZES

OWN = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 16, "pad_token_id": 0}
TOKENS = torch.arange(20, 44)[None]


def made(kind: str) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SIZES | OWN)).eval().requires_grad_(False)


def joined(network: Any) -> list[str]:
    """Names of the joined layers of the first decoder layer."""
    return [name for name, part in network.model.layers[0].named_modules() if isinstance(part, JoinedLinear)]


@pytest.mark.parametrize("kind", ["qwen2", "gemma3_text", "olmo2"])
@torch.inference_mode()
def test_a_network_computes_as_before(kind: str) -> None:
    plain = made(kind)
    network = deepcopy(plain)
    join_layers(network)
    assert [name.rpartition(".")[2][0] for name in joined(network)] == [*"qkvgu"]
    assert sum(w.nbytes for w in network.parameters()) == sum(w.nbytes for w in plain.parameters())
    own, other = plain.model.layers[1].self_attn.k_proj, network.model.layers[1].self_attn.k_proj
    assert torch.equal(own.weight, other.weight)
    assert own.bias is other.bias is None or torch.equal(own.bias, other.bias)
    torch.testing.assert_close(network(TOKENS).logits, plain(TOKENS).logits, rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_each_layer_computes_with_its_own_input() -> None:
    """The order of calls does not matter: two threads may run one network."""
    network = made("llama").model.layers[0].self_attn
    plain = deepcopy(network)
    join_layers(network)
    x, y = torch.randn(2, 3, 64).unbind()
    for name, read in (("q_proj", x), ("q_proj", y), ("k_proj", x), ("v_proj", y), ("v_proj", x), ("k_proj", y)):
        torch.testing.assert_close(getattr(network, name)(read), getattr(plain, name)(read))


def test_quantised_layers_are_joined_where_their_formats_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with pretended_gpu(monkeypatch), torch.inference_mode():
        network = made("qwen2").model.layers[0]
        for name, part in list(network.named_modules()):
            if isinstance(part, torch.nn.Linear):
                one = "q8" if name.endswith("up_proj") else "q4"
                network.set_submodule(name, GpuQuantizedLinear(quantize(part.weight, one), part.bias, GPU))
        x = torch.randn(3, 64).to(GPU)
        projections = {name: part for name, part in network.named_modules() if name.endswith("_proj")}
        expected = {name: part(x).cpu() for name, part in projections.items() if part.in_features == 64}
        join_layers(network)
        names = [name for name, part in network.named_modules() if isinstance(part, JoinedLinear)]
        assert len(names) == 3
        for name in names:
            torch.testing.assert_close(network.get_submodule(name)(x).cpu(), expected[name])


def test_a_backend_on_a_gpu_joins_and_the_model_keeps_its_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    network, other = made("llama"), made("llama")
    with pretended_gpu(monkeypatch):
        to_gpu(network)
        TransformersBackend(network, 1, 64, 17)
        assert len(joined(network)) == 5
        assert fingerprint(network) == fingerprint(other)
