"""A GGUF file with random weights in the shape of Llama 3.2 1B, at Q4_K: python -m benchmarks.make_random_gguf FILE.

For `specchat bench --peer llama.cpp --target FILE --drafter none`: what a pass costs does not depend on what the weights
say. The tokenizer is the default model's, filled up to the shape's vocabulary.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from numpy.typing import NDArray

from specchat.engine.config import models_folder
from specchat.engine.models import DEFAULT_PRESET, ModelStore
from specchat.engine.models.packed.find import gguf_file
from specchat.engine.progress import ignore_progress

HIDDEN, LAYERS, HEADS, KEY_HEADS, HEAD_SIZE, FFN, VOCABULARY = 2048, 16, 32, 8, 64, 8192, 128_256
CONTEXT, ROPE_BASE = 8192, 500_000.0
_BLOCK = 256
"""Columns of a block of the types used here."""
_STEP = np.float16(1e-4)
"""Of a Q4_K block: weights then have a standard deviation of about 0.03."""
_OUTER_STEP = np.float16(2e-5)
"""Of a Q6_K block, for the same."""


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--layers", type=int, default=LAYERS)
    options = parser.parse_args()
    source = gguf_file(DEFAULT_PRESET, ModelStore(models_folder()), ignore_progress)
    assert source is not None  # the default model is a GGUF file
    write(options.file, source, options.layers)
    print(f"{options.file}: {options.file.stat().st_size / 1e9:.2f} GB")


def write(file: Path, tokenizer: Path, layers: int) -> None:
    """Write random weights.

    Args:
        file: where to; replaced if it is there.
        tokenizer: a GGUF file whose tokenizer is taken.
        layers: how many.
    """
    draws = np.random.default_rng(1)
    writer = GGUFWriter(file, "llama")
    writer.add_name(file.stem)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_rope_dimension_count(HEAD_SIZE)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCABULARY)
    _copy_tokenizer(GGUFReader(tokenizer), writer)
    _add(writer, "token_embd.weight", _q6_k(draws, VOCABULARY, HIDDEN), GGMLQuantizationType.Q6_K)
    for layer in range(layers):
        keys = KEY_HEADS * HEAD_SIZE
        for name, rows, columns in (
            ("attn_q", HIDDEN, HIDDEN),
            ("attn_k", keys, HIDDEN),
            ("attn_v", keys, HIDDEN),
            ("attn_output", HIDDEN, HIDDEN),
            ("ffn_gate", FFN, HIDDEN),
            ("ffn_up", FFN, HIDDEN),
            ("ffn_down", HIDDEN, FFN),
        ):
            _add(writer, f"blk.{layer}.{name}.weight", _q4_k(draws, rows, columns), GGMLQuantizationType.Q4_K)
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(HIDDEN, np.float32))
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _copy_tokenizer(source: GGUFReader, writer: GGUFWriter) -> None:
    for name, field in source.fields.items():
        if not name.startswith("tokenizer."):
            continue
        value: Any = field.contents()
        if name == "tokenizer.ggml.tokens":
            value = [*value, *(f"[PAD{token}]" for token in range(len(value), VOCABULARY))]
        elif name == "tokenizer.ggml.token_type":
            value = [*value, *[1] * (VOCABULARY - len(value))]
        if field.types[0] is GGUFValueType.ARRAY:
            writer.add_array(name, value)
        else:
            writer.add_key_value(name, value, field.types[0])


def _add(writer: GGUFWriter, name: str, blocks: NDArray[np.uint8], kind: GGMLQuantizationType) -> None:
    writer.add_tensor(name, blocks, raw_dtype=kind)


def _q4_k(draws: np.random.Generator, rows: int, columns: int) -> NDArray[np.uint8]:
    """Random blocks [rows, bytes] of 4-bit codes; minima are such that the mean of all weights is about 0."""
    blocks = draws.integers(0, 256, (rows, columns // _BLOCK, 144), dtype=np.uint8)
    blocks[..., :2] = np.frombuffer(_STEP.tobytes(), np.uint8)
    blocks[..., 2:4] = np.frombuffer(np.float16(7.5 * _STEP).tobytes(), np.uint8)
    return blocks.reshape(rows, -1)


def _q6_k(draws: np.random.Generator, rows: int, columns: int) -> NDArray[np.uint8]:
    """Random blocks [rows, bytes] of 6-bit codes."""
    blocks = draws.integers(0, 256, (rows, columns // _BLOCK, 210), dtype=np.uint8)
    blocks[..., 208:] = np.frombuffer(_OUTER_STEP.tobytes(), np.uint8)
    return blocks.reshape(rows, -1)


if __name__ == "__main__":
    main()
