"""Models of a few kilobytes with random weights, as folders and as GGUF files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from specchat.engine.progress import silence_transformers

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_TEXT = "the quick brown fox jumps over the lazy dog and the dog barks at the fox in the quick brown night 0123456789"


def write_tiny_model(
    folder: Path,
    seed: int = 0,
    vocabulary: int = 320,
    chat_template: str | None = CHAT_TEMPLATE,
    dtype: torch.dtype = torch.float32,
    **config: Any,
) -> Path:
    """Write a Llama of 2 layers with random weights and a byte-level BPE tokenizer; give the folder back."""
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    silence_transformers()
    settings: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "tie_word_embeddings": True,
        "initializer_range": 0.2,  # wide, so that greedy choices are far from ties
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(LlamaConfig(**settings | config))
    model.to(dtype).save_pretrained(folder)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tiny_tokenizer(vocabulary), bos_token=SPECIAL[1], eos_token=SPECIAL[2], pad_token=SPECIAL[0]
    )
    tokenizer.chat_template = chat_template
    tokenizer.save_pretrained(folder)
    return folder


def tiny_tokenizer(vocabulary: int) -> Any:
    """A byte-level BPE tokenizer of so many tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_TEXT], trainer)
    return tokenizer


def write_tiny_gguf(model_folder: Path, file: Path, rope_factors: np.ndarray | None = None, **metadata: Any) -> Path:
    """Write the tiny Llama of a folder as a float32 GGUF file, as llama.cpp's converter does; give the file back.

    `metadata` adds keys, with "__" for dots.
    """
    from gguf import GGUFWriter
    from safetensors.torch import load_file

    config = json.loads((model_folder / "config.json").read_text())
    writer = GGUFWriter(file, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["hidden_size"] // config["num_attention_heads"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    add_tokenizer(writer, model_folder)
    for key, value in metadata.items():
        adders = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        adders[type(value)](key.replace("__", "."), value)
    for name, weight in load_file(model_folder / "model.safetensors").items():
        heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
        array = weight.float().numpy()
        for projection, count in heads.items():
            if projection in name:  # llama.cpp rotates neighbouring pairs, transformers the two halves
                array = array.reshape(count, 2, -1, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
        writer.add_tensor(_gguf_name(name), np.ascontiguousarray(array))
    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", rope_factors.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def add_tokenizer(writer: Any, model_folder: Path) -> None:
    """Add the tokenizer of a folder to a `GGUFWriter`."""
    from gguf import TokenType

    tokenizer = json.loads((model_folder / "tokenizer.json").read_text())
    size = json.loads((model_folder / "config.json").read_text())["vocab_size"]
    by_id = {token: text for text, token in tokenizer["model"]["vocab"].items()}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([by_id.get(token, f"[PAD{token}]") for token in range(size)])
    writer.add_token_types([TokenType.CONTROL if token < len(SPECIAL) else TokenType.NORMAL for token in range(size)])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_chat_template(CHAT_TEMPLATE)


def _gguf_name(name: str) -> str:
    for ours, theirs in (
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("model.layers", "blk"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
        ("post_attention_layernorm", "ffn_norm"),
        ("input_layernorm", "attn_norm"),
    ):
        name = name.replace(ours, theirs)
    return name
