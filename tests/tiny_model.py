"""Models of a few kilobytes with random weights, as folders and as GGUF files."""

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
        "vocab_size": vocabulary, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
        "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
        "initializer_range": 0.2,  # wide, so that greedy choices are far from ties
    }  # fmt: skip
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


def write_tiny_gguf(folder: Path, file: Path, rope_factors: np.ndarray | None = None, **keys: Any) -> Path:
    """Write the tiny Llama of a folder as a float32 GGUF file; give the file back. In more `keys`, "__" are dots."""
    from tests.engine.gguf_files import write_gguf

    more = {key.replace("__", "."): value for key, value in keys.items()}
    return write_gguf("llama", folder, file, keys=more, rope_factors=rope_factors)


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
