"""Models that read images too: their text part runs as in transformers, and the encoders of images are not kept."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForImageTextToText

from specchat.engine import Engine, EngineConfig
from specchat.engine.models.load import load_model
from specchat.engine.progress import ignore_progress, silence_transformers
from tests.engine.tiny import assert_drafters_agree, notices_of

_TEXT: dict[str, Any] = {
    "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "initializer_range": 0.2,
    "tie_word_embeddings": False,
}  # fmt: skip
_IMAGES: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "depth": 1,
    "num_heads": 2, "out_hidden_size": 64, "num_position_embeddings": 16, "deepstack_visual_indexes": [0],
}  # fmt: skip
_LATENT = {
    "num_key_value_heads": 4, "kv_lora_rank": 24, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16,
    "v_head_dim": 12, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_group": 1,
    "topk_group": 1,
}  # fmt: skip
_HEADS = {"num_key_value_heads": 2, "head_dim": 16}
_NEAR = _HEADS | {"sliding_window": 8}
_MULTIMODAL_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
MODELS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "muse-glimmer": ("muse_glimmer", "muse_glimmer_text", _NEAR, {"projector_hidden_size": 32}),
    "mistral-small-4": ("mistral3", "mistral4", _LATENT, {}),
    "mistral-small-3": ("mistral3", "mistral", _HEADS, {}),
    "ministral-3": ("mistral3", "ministral3", _HEADS, {}),
    "qwen3-vl": ("qwen3_vl", "qwen3_vl_text", _HEADS | {"rope_parameters": _MULTIMODAL_ROPE}, {}),
    "aya-vision": ("aya_vision", "cohere2", _NEAR | {"logit_scale": 0.25}, {}),
}
"""Types of the whole and of its text part, and what is special about the configurations of text part and whole."""
PACKED = ("ministral-3",)
"""Those whose text part the quantised kernels run."""


def write(name: str, tokenizer: Path, folder: Path) -> Path:
    """Write a tiny model of `MODELS` with the tokenizer of another folder; give its folder back."""
    silence_transformers()
    kind, text, own, of_whole = MODELS[name]
    images = CONFIG_MAPPING[kind]().vision_config.to_dict()
    sizes = {key: size for key, size in _IMAGES.items() if key in images} | {"model_type": images["model_type"]}
    config = CONFIG_MAPPING[kind](
        text_config={"model_type": text} | _TEXT | own, vision_config=sizes, tie_word_embeddings=False, **of_whole
    )
    torch.manual_seed(0)
    AutoModelForImageTextToText.from_config(config).to(torch.bfloat16).save_pretrained(folder)
    for file in (*tokenizer.glob("*token*"), *tokenizer.glob("chat_template*")):
        shutil.copy(file, folder)
    return folder


@pytest.mark.parametrize("name", MODELS)
def test_the_text_part_is_that_of_the_whole(name: str, tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    folder = write(name, tiny_model(), tmp_path / name)
    loaded = load_model(folder, torch.device("cpu"), torch.float32, ignore_progress).model
    whole = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    tokens = torch.randint(6, 300, (1, 24), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        torch.testing.assert_close(loaded(tokens).logits, whole(tokens).logits, rtol=1e-4, atol=1e-4)
    assert not any("vision_tower" in name or "visual" in name for name, _ in loaded.named_parameters())


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", [*PACKED, "mistral-small-4"])
def test_greedy_replies_are_the_same_for_all_drafters(
    name: str, tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    folder = write(name, tiny_model(), tmp_path / name)
    dtype = "auto" if name in PACKED else "float32"
    config = EngineConfig(str(folder), tmp_path / "models", dtype=dtype, slots=2, context=200, prefill_chunk=8)
    with Engine(config) as engine:
        assert engine.wait_ready(120).dtype == ("Q8" if name in PACKED else dtype)
        assert_drafters_agree(engine, ("random",))
        assert not notices_of(engine.drain())
