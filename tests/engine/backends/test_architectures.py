"""Every decoder of transformers that is accepted here: ragged chains and trees give what a pass without a cache gives.

The configurations are found in the auto mapping: what has a size is made small, and what cannot be made small that way,
or is refused by `engine.models.model_config`, is skipped with the reason.
"""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from specchat.engine.backends.transformers_backend import TransformersBackend
from specchat.engine.decoding.tree import Tree
from specchat.engine.errors import EngineError
from specchat.engine.models.checkpoint import Checkpoint
from specchat.engine.models.model_config import model_config
from specchat.engine.progress import silence_transformers
from tests.engine.scored import make_static, scored

KINDS = sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
VOCABULARY = 128
_BY_SIZE: dict[object, str] = {
    VOCABULARY: "vocab_size vocab_size_per_layer_input",
    64: "hidden_size n_embd d_model",
    96: "intermediate_size ffn_dim n_inner ffn_hidden_size",
    32: "moe_intermediate_size shared_expert_intermediate_size q_lora_rank kv_lora_rank",
    24: "sliding_window",
    16: "head_dim qk_nope_head_dim v_head_dim hidden_size_per_layer_input",
    8: "rotary_dim qk_rope_head_dim",
    4: "num_hidden_layers n_layer n_layers num_layers num_attention_heads n_head n_heads num_experts num_local_experts "
    "n_routed_experts",
    2: "num_key_value_heads num_experts_per_tok moe_topk eos_token_id",
    1: "n_group topk_group first_k_dense_replace bos_token_id",
    0: "pad_token_id",
    256: "max_position_embeddings n_positions max_seq_len",
}
_SMALL = {name: size for size, names in _BY_SIZE.items() for name in names.split()} | {"is_decoder": True}
_VARIANTS: tuple[dict[str, object], ...] = (
    {}, {"num_key_value_heads": 1}, {"num_key_value_heads": 4}, {"num_experts_per_tok": 1},
    {"head_dim": None, "num_key_value_heads": 4},
)  # fmt: skip
"""Changes to `_SMALL`, tried in turn; None leaves a value to the kind. Some kinds allow only one key head or expert."""
_NO_WINDOW = {"moshi": "its modelling code ignores the window that its configuration states, its whole context"}
_MOST = 30_000_000
"""Parameters of what still counts as tiny."""


def tiny(kind: str, folder: Path) -> TransformersBackend:
    """A network of random weights of this kind, with a cache; the test is skipped if none is small."""
    if kind in _NO_WINDOW:
        pytest.skip(_NO_WINDOW[kind])
    silence_transformers()
    reasons = []
    for variant in _VARIANTS:
        try:
            network = network_of(kind, folder, variant)
            return TransformersBackend(network, 4, 96, 17)
        except EngineError as error:
            reasons.append(f"refused: {str(error).replace(str(folder), kind)}")
        except Exception as error:
            reasons.append(f"no small network can be made: {type(error).__name__}: {str(error).splitlines()[:2]}")
    pytest.skip(reasons[0])


def network_of(kind: str, folder: Path, variant: dict[str, object]) -> Any:
    """A network of this kind with small sizes, made as a folder's would be."""
    usual = CONFIG_MAPPING[kind]()
    assert usual.get_text_config() is usual, "it contains other networks besides its decoder"
    small = {**_SMALL, **variant}
    if "kv_lora_rank" in usual.to_dict():  # latent attention has as many key heads as query heads
        small["num_key_value_heads"] = small["num_attention_heads"]
    known = {name: value for name, value in small.items() if value is not None and name in usual.to_dict()}
    if "layer_types" in usual.to_dict():
        known["layer_types"] = None
    config = CONFIG_MAPPING[kind](**known)
    config.save_pretrained(folder)
    raw = json.loads((folder / "config.json").read_text())
    accepted = model_config(Checkpoint(folder, raw, 1 << 40, frozenset()))
    torch.manual_seed(0)
    with torch.device("meta"):
        count = sum(weight.numel() for weight in AutoModelForCausalLM.from_config(accepted).parameters())
    assert count <= _MOST, f"it has {count:,} weights"
    return AutoModelForCausalLM.from_config(accepted).float().eval().requires_grad_(False)


TREE = Tree((0, 0, 1, 1, 2, 5, 0))
LENGTHS = (40, 13, 27)
"""Lengths of the rows' prompts: the first is longer than a sliding window."""
CHAIN = 5


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_ragged_chains_and_trees_are_those_of_passes_without_a_cache(kind: str, tmp_path: Path) -> None:
    runner = tiny(kind, tmp_path)
    reference = copy.deepcopy(runner.model)
    reference.set_attn_implementation("eager")
    generator = torch.Generator().manual_seed(1)
    texts = [torch.randint(3, VOCABULARY, (length + 8,), generator=generator) for length in LENGTHS]
    slots = [3, 0, 2]
    for text, slot, length in zip(texts, slots, LENGTHS, strict=True):
        runner.prefill(text[None, :length], [slot], [0])
    chains = torch.stack([text[length : length + CHAIN] for text, length in zip(texts, LENGTHS, strict=True)])
    trees = torch.stack([text[length : length + len(TREE) + 1] for text, length in zip(texts, LENGTHS, strict=True)])
    expected_chains = torch.stack(
        [uncached(reference, text[: length + CHAIN])[-CHAIN:] for text, length in zip(texts, LENGTHS, strict=True)]
    )
    spread = float(expected_chains.std())
    for static in (False, True):
        if static:
            make_static(runner)
        found = runner.forward(chains, slots, LENGTHS)
        off = float((found - expected_chains).abs().max()) / spread
        assert off < 2e-3, f"chains, static: {static}"
        if not runner.capabilities.trees:  # a recurrent state has no branches, and no graph records it
            return
        found, _ = scored(runner, trees.tolist(), slots, LENGTHS, [TREE] * 3)
        expected = [
            uncached(reference, torch.cat([text[:length], branch(text[length:], end)]))[-1]
            for text, length in zip(texts, LENGTHS, strict=True)
            for end in range(len(TREE) + 1)
        ]
        off = float((found.flatten(0, 1) - torch.stack(expected)).abs().max()) / spread
        assert off < 2e-3, f"trees, static: {static}"


def branch(tokens: torch.Tensor, end: int) -> torch.Tensor:
    """The row's last token and what leads to token `end` of its tree."""
    return tokens[[0, *TREE.path(end)]]


@torch.inference_mode()
def uncached(network: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Logits [T, V] of one text in one pass."""
    return network(input_ids=tokens[None], use_cache=False).logits[0]
