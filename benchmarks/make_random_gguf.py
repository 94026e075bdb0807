"""A GGUF file with random weights in the shape of a real model, at Q4_K_M: python -m benchmarks.make_random_gguf FILE.

For `specchat bench --peer llama.cpp --target FILE --drafter none`: the cost of a pass does not depend on the values of
the weights. The tokenizer is the default model's, filled up to the shape's vocabulary. Tensors have the types that
llama.cpp chooses for Q4_K_M.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFReader, GGUFValueType, GGUFWriter
from numpy.typing import NDArray

from specchat.engine.config import models_folder
from specchat.engine.models import DEFAULT_PRESET, ModelStore
from specchat.engine.models.resolve import resolve
from specchat.engine.progress import ignore_progress

CONTEXT = 8192
_BLOCK = 256
"""Columns of a block of the types used here."""
BYTES = {Type.Q4_K: 144, Type.Q5_K: 176, Type.Q6_K: 210}
"""Bytes of a block."""
STEPS = {Type.Q4_K: slice(4), Type.Q5_K: slice(4), Type.Q6_K: slice(208, 210)}
"""Offsets of a block's scale and, in the first two kinds, its minimum, float16: with zeros all weights are 0."""
_STEP = np.float16(1e-4)
"""Scale of a Q4_K block: weights then have a standard deviation of about 0.03."""
_OUTER_STEP = np.float16(2e-5)
"""Scale of a Q6_K block, for the same deviation."""
_KINDS = {int: GGUFValueType.UINT32, float: GGUFValueType.FLOAT32, list: GGUFValueType.ARRAY}
"""Types of metadata."""
Tensor = tuple[str, tuple[int, ...], Type]
"""Name, sizes with the rows first, and type."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a model."""

    architecture: str
    hidden: int
    layers: int
    vocabulary: int
    metadata: dict[str, Any]
    """More keys, without the architecture before them."""
    tensors: Callable[[Shape, int], Iterator[Tensor]]
    """Tensors of a layer; their names follow `blk.N.`."""
    shared: tuple[Tensor, ...] = ()
    """Tensors of no layer, besides embedding and final norm."""
    final_norm: str = "output_norm"


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="llama-3.2-1b")
    options = parser.parse_args()
    write(options.file, SHAPES[options.shape])
    print(f"{options.file}: {options.file.stat().st_size / 1e9:.2f} GB")


Values = Callable[[np.random.Generator, str, tuple[int, ...], Type], NDArray[Any]]
"""Makes a tensor of this name, with these sizes and of this type."""


def write(file: Path, shape: Shape, values: Values | None = None) -> None:
    """Write random weights, with the tokenizer of the default model.

    Args:
        file: where to; replaced if it is there.
        shape: of the model.
        values: makes the weights, `random_values` if None.
    """
    draws = np.random.default_rng(1)
    writer = GGUFWriter(file, shape.architecture, use_temp_file=True)
    writer.add_name(file.stem)
    about = {"context_length": CONTEXT, "embedding_length": shape.hidden, "block_count": shape.layers}
    for key, value in {**about, "vocab_size": shape.vocabulary, **shape.metadata}.items():
        writer.add_key_value(f"{shape.architecture}.{key}", value, _KINDS[type(value)])
    _copy_tokenizer(writer, shape.vocabulary)
    embedding: Tensor = ("token_embd.weight", (shape.vocabulary, shape.hidden), Type.Q6_K)
    norm: Tensor = (f"{shape.final_norm}.weight", (shape.hidden,), Type.F32)
    layers = (
        (f"blk.{layer}.{name}", sizes, kind)
        for layer in range(shape.layers)
        for name, sizes, kind in shape.tensors(shape, layer)
    )
    for name, sizes, kind in (embedding, norm, *shape.shared, *layers):
        writer.add_tensor(name, (values or random_values)(draws, name, sizes, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _copy_tokenizer(writer: GGUFWriter, vocabulary: int) -> None:
    source = resolve(DEFAULT_PRESET, ModelStore(models_folder()), ignore_progress).file()
    assert source is not None  # the default model is a GGUF file
    for name, field in GGUFReader(source).fields.items():
        if not name.startswith("tokenizer."):
            continue
        value: Any = field.contents()
        if name == "tokenizer.ggml.tokens":
            value = [*value, *(f"[PAD{token}]" for token in range(len(value), vocabulary))]
        elif name == "tokenizer.ggml.token_type":
            value = [*value, *[1] * (vocabulary - len(value))]
        writer.add_key_value(name, value, field.types[0])


def random_values(draws: np.random.Generator, name: str, sizes: tuple[int, ...], kind: Type) -> NDArray[Any]:
    """Random values; norms and scales are 1, and the decay rates of a delta net negative."""
    if kind in BYTES:
        return _blocks(draws, sizes[0], sizes[1], kind)
    if "norm" in name or "scale" in name:
        return np.ones(sizes, np.float32)
    if name == "rope_freqs.weight":  # divisors of Gemma 4's frequencies: a quarter of the dimensions is rotated
        return np.where(np.arange(sizes[0]) < sizes[0] // 4, 1.0, 1e30).astype(np.float32)
    values = draws.normal(0.0, 0.03, sizes).astype(np.float16 if kind is Type.F16 else np.float32)
    return -np.abs(values) if name.endswith("ssm_a") else values


def _blocks(draws: np.random.Generator, rows: int, columns: int, kind: Type) -> NDArray[np.uint8]:
    """Random blocks [rows, bytes] of codes; minima are such that the mean of all weights is about 0."""
    blocks = np.frombuffer(draws.bytes(rows * columns // _BLOCK * BYTES[kind]), np.uint8).reshape(-1, BYTES[kind])
    blocks = blocks.copy()
    if kind is Type.Q6_K:
        blocks[:, STEPS[kind]] = np.frombuffer(_OUTER_STEP.tobytes(), np.uint8)
    else:
        step, mean = (_STEP, 7.5) if kind is Type.Q4_K else (_STEP / 2, 15.5)
        blocks[:, :2] = np.frombuffer(np.float16(step).tobytes(), np.uint8)
        blocks[:, 2:4] = np.frombuffer(np.float16(mean * step).tobytes(), np.uint8)
    return blocks.reshape(rows, -1)


def _more_bits(layer: int, layers: int) -> Type:
    """Type of values and down projections: every third layer, the first and the last eighth have 6 bits."""
    outer = layer < layers // 8 or layer >= 7 * layers // 8
    return Type.Q6_K if outer or (layer - layers // 8) % 3 == 2 else Type.Q4_K


def _mlp(shape: Shape, layer: int, inner: int) -> Iterator[Tensor]:
    yield "ffn_gate.weight", (inner, shape.hidden), Type.Q4_K
    yield "ffn_up.weight", (inner, shape.hidden), Type.Q4_K
    yield "ffn_down.weight", (shape.hidden, inner), _more_bits(layer, shape.layers)


def _attention(shape: Shape, layer: int, heads: int, key_heads: int, size: int, *, gated: bool) -> Iterator[Tensor]:
    yield "attn_q.weight", (heads * size * (1 + gated), shape.hidden), Type.Q4_K
    yield "attn_k.weight", (key_heads * size, shape.hidden), Type.Q4_K
    yield "attn_v.weight", (key_heads * size, shape.hidden), _more_bits(layer, shape.layers)
    yield "attn_output.weight", (shape.hidden, heads * size), Type.Q4_K


def _norms(size: int, *names: str) -> Iterator[Tensor]:
    for name in names:
        yield f"{name}.weight", (size,), Type.F32


def _llama(shape: Shape, layer: int) -> Iterator[Tensor]:
    yield from _attention(shape, layer, 32, shape.metadata["attention.head_count_kv"], 64, gated=False)
    yield from _mlp(shape, layer, shape.metadata["feed_forward_length"])
    yield from _norms(shape.hidden, "attn_norm", "ffn_norm")


def _llama_shape(layers: int, vocabulary: int, key_heads: int, rope_base: float) -> Shape:
    metadata = {
        "feed_forward_length": 8192,
        "attention.head_count": 32,
        "attention.head_count_kv": key_heads,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": 64,
        "rope.freq_base": rope_base,
    }
    return Shape("llama", 2048, layers, vocabulary, metadata, _llama)


def _qwen35(shape: Shape, layer: int) -> Iterator[Tensor]:
    heads, size = 16, 128
    if (layer + 1) % 4:
        yield "attn_qkv.weight", (3 * heads * size, shape.hidden), Type.Q5_K
        yield "attn_gate.weight", (heads * size, shape.hidden), Type.Q4_K
        yield "ssm_conv1d.weight", (3 * heads * size, 4), Type.F32
        yield "ssm_dt.bias", (heads,), Type.F32
        yield "ssm_a", (heads,), Type.F32
        yield "ssm_beta.weight", (heads, shape.hidden), Type.Q4_K
        yield "ssm_alpha.weight", (heads, shape.hidden), Type.Q4_K
        yield "ssm_norm.weight", (size,), Type.F32
        yield "ssm_out.weight", (shape.hidden, heads * size), Type.Q4_K
    else:
        yield from _attention(shape, layer, 8, 2, 256, gated=True)
        yield from _norms(256, "attn_q_norm", "attn_k_norm")
    yield from _mlp(shape, layer, 3584)
    yield from _norms(shape.hidden, "attn_norm", "post_attention_norm")


_WITH_ATTENTION = (2, 5, 8, 10, 12, 14)
"""Layers of LFM2 with attention; the others have a short convolution."""


def _lfm2(shape: Shape, layer: int) -> Iterator[Tensor]:
    if layer in _WITH_ATTENTION:
        yield from _attention(shape, layer, 32, 8, 64, gated=False)
        yield from _norms(64, "attn_q_norm", "attn_k_norm")
    else:
        yield "shortconv.in_proj.weight", (3 * shape.hidden, shape.hidden), Type.Q4_K
        yield "shortconv.conv.weight", (shape.hidden, 3), Type.F32
        yield "shortconv.out_proj.weight", (shape.hidden, shape.hidden), Type.Q4_K
    yield from _mlp(shape, layer, shape.metadata["feed_forward_length"])
    yield from _norms(shape.hidden, "attn_norm", "ffn_norm")


_PER_LAYER, _WITHOUT_KEYS = 256, 20


def _gemma4(shape: Shape, layer: int) -> Iterator[Tensor]:
    size, own = (256 if (layer + 1) % 5 else 512), layer < shape.layers - _WITHOUT_KEYS
    for tensor in _attention(shape, layer, 8, 1, size, gated=False):
        if own or tensor[0] in ("attn_q.weight", "attn_output.weight"):
            yield tensor
    yield from _norms(size, *(("attn_q_norm", "attn_k_norm") if own else ("attn_q_norm",)))
    yield from _mlp(shape, layer, 6144 if own else 12288)
    yield from _norms(shape.hidden, "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "post_norm")
    yield "inp_gate.weight", (_PER_LAYER, shape.hidden), Type.Q4_K
    yield "proj.weight", (shape.hidden, _PER_LAYER), Type.Q4_K
    yield "layer_output_scale.weight", (1,), Type.F32


SHAPES = {
    "llama-3.2-1b": _llama_shape(16, 128_256, 8, 500_000.0),
    "smollm2-1.7b": _llama_shape(24, 49_152, 32, 130_000.0),
    "lfm2.5-1.2b": Shape(
        *("lfm2", 2048, 16, 65_536),
        {
            "feed_forward_length": 8192,
            "attention.head_count": 32,
            "attention.head_count_kv": [8 * (layer in _WITH_ATTENTION) for layer in range(16)],
            "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.dimension_count": 64,
            "rope.freq_base": 1_000_000.0,
            "shortconv.l_cache": 3,
        },
        _lfm2,
        final_norm="token_embd_norm",
    ),
    "qwen3.5-0.8b": Shape(
        *("qwen35", 1024, 24, 248_320),
        {
            "feed_forward_length": 3584,
            "attention.head_count": 8,
            "attention.head_count_kv": 2,
            "attention.key_length": 256,
            "attention.value_length": 256,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "rope.dimension_count": 64,
            "rope.dimension_sections": [11, 11, 10, 0],
            "rope.freq_base": 10_000_000.0,
            "full_attention_interval": 4,
            "ssm.conv_kernel": 4,
            "ssm.state_size": 128,
            "ssm.group_count": 16,
            "ssm.time_step_rank": 16,
            "ssm.inner_size": 2048,
        },
        _qwen35,
    ),
    "gemma-4-e2b": Shape(
        *("gemma4", 1536, 35, 262_144),
        {
            "feed_forward_length": [6144] * 15 + [12288] * 20,
            "attention.head_count": 8,
            "attention.head_count_kv": 1,
            "attention.key_length": 512,
            "attention.value_length": 512,
            "attention.key_length_swa": 256,
            "attention.value_length_swa": 256,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "attention.sliding_window": 512,
            "attention.sliding_window_pattern": [bool((layer + 1) % 5) for layer in range(35)],
            "attention.shared_kv_layers": _WITHOUT_KEYS,
            "embedding_length_per_layer_input": _PER_LAYER,
            "final_logit_softcapping": 30.0,
            "rope.dimension_count": 512,
            "rope.dimension_count_swa": 256,
            "rope.freq_base": 1_000_000.0,
            "rope.freq_base_swa": 10_000.0,
        },
        _gemma4,
        (
            ("per_layer_token_embd.weight", (262_144, 35 * _PER_LAYER), Type.Q6_K),
            ("per_layer_model_proj.weight", (35 * _PER_LAYER, 1536), Type.F16),
            ("per_layer_proj_norm.weight", (_PER_LAYER,), Type.F32),
            ("rope_freqs.weight", (256,), Type.F32),
        ),
    ),
}


if __name__ == "__main__":
    main()
