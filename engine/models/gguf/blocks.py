"""Quantised blocks of a GGUF file as arrays of codes and scales, without loss.

Layouts: ggml's block structures (https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h). A block of 32 or 256
neighbouring columns is a few scales and the packed codes; here all blocks of a tensor are unpacked at once, from the
memory-mapped file.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specchat.engine.errors import EngineError, check
from specchat.engine.kernels.packed_matrix import Format, MatrixArrays
from specchat.engine.models.gguf.header import GgufHeader, GgufTensor

Bytes = NDArray[np.uint8]
Array = NDArray[Any]
_UNPACKED = 1 << 24
"""Number of weights that are unpacked at a time, so that what it takes stays small."""


def read_matrix(
    header: GgufHeader, tensor: GgufTensor, chosen: NDArray[np.int64] | slice = slice(None)
) -> MatrixArrays:
    """Read a two-dimensional tensor, or a three-dimensional one as its matrices one after the other.

    Args:
        header: of the file.
        tensor: from the same file.
        chosen: rows, in this order; all by default.

    Raises:
        EngineError: its type is not one of `TYPES`, blocks do not divide its rows, or a scale is not a number.
    """
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    check_type(header, tensor)
    columns, rows = tensor.shape[0], math.prod(tensor.shape[1:])
    block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[tensor.type]]
    if columns % block:
        raise EngineError(
            f"{header.path} is damaged: the rows of {tensor.name} have {columns} weights, which blocks of {block} do "
            "not divide; fetch the file again"
        )
    raw = np.memmap(header.path, np.uint8, "r", tensor.offset, tensor.bytes)
    rows_of_bytes = raw.reshape(rows, -1)[chosen]
    if tensor.type in _PLAIN:
        form, dtype = _PLAIN[tensor.type]
        return MatrixArrays(form, rows_of_bytes.view(dtype))
    unpack, form = _BLOCKS[tensor.type]
    parts: dict[str, Array] = {}
    step = max(_UNPACKED // columns, 1)
    for first in range(0, len(rows_of_bytes), step):
        some = rows_of_bytes[first : first + step]
        for name, part in unpack(some.reshape(-1, block_bytes)).items():
            if name not in parts:
                parts[name] = np.empty((len(rows_of_bytes), part.size // len(some)), part.dtype)
            parts[name][first : first + step] = part.reshape(len(some), -1)
    arrays = MatrixArrays(form, **parts)
    if arrays.is_damaged:
        raise header.damaged(tensor.name)
    return arrays


def dequantized_rows(header: GgufHeader, tensor: GgufTensor, chosen: NDArray[np.int64]) -> NDArray[np.float32]:
    """Rows of a tensor, dequantised by the gguf package, so bit-identical to transformers' own."""
    from gguf import GGMLQuantizationType, quants

    raw = np.memmap(header.path, np.uint8, "r", tensor.offset, tensor.bytes).reshape(math.prod(tensor.shape[1:]), -1)
    return quants.dequantize(raw[chosen], GGMLQuantizationType[tensor.type])


def read_vector(header: GgufHeader, tensor: GgufTensor) -> NDArray[np.float32]:
    """Read a one-dimensional tensor.

    Raises:
        EngineError: it is quantised.
    """
    check(tensor.type in _PLAIN, f"{header.path} has {tensor.name} as {tensor.type}: plain numbers are expected there")
    form, dtype = _PLAIN[tensor.type]
    raw = np.memmap(header.path, np.uint8, "r", tensor.offset, tensor.bytes)
    values: NDArray[np.float32] = MatrixArrays(form, raw.view(dtype)[None]).values()[0]
    return values


def check_type(header: GgufHeader, tensor: GgufTensor) -> None:
    """Check that the type of a tensor is one of `TYPES`.

    Raises:
        EngineError: it is not supported.
    """
    if tensor.type not in TYPES:
        raise EngineError(
            f"{header.path} has {tensor.name} as {tensor.type}, which cannot be kept quantised: the types that can are "
            f"{', '.join(TYPES)}"
        )


def most_common_type(header: GgufHeader) -> str:
    """Name of the type of most weights, the embedding excluded if types differ."""
    counts: Counter[str] = Counter()
    for tensor in header.tensors.values():
        counts[tensor.type] += tensor.elements
    embedding = header.tensors.get("token_embd.weight")
    if embedding is not None and len(counts) > 1:
        counts[embedding.type] -= embedding.elements
    return counts.most_common(1)[0][0]


def _q4_0(blocks: Bytes) -> dict[str, Array]:
    # d (q - 8) as a scale and a minimum: -8 d is exact in float16.
    scale = _half(blocks, 0)
    return {"codes": _nibbles(blocks[:, 2:18]), "scale": scale, "minimum": scale * np.float16(-8)}


def _q4_1(blocks: Bytes) -> dict[str, Array]:
    return {"codes": _nibbles(blocks[:, 4:20]), "scale": _half(blocks, 0), "minimum": _half(blocks, 2)}


def _q5_0(blocks: Bytes) -> dict[str, Array]:
    return {"codes": _five_bits(blocks, 2).view(np.int8) - np.int8(16), "scale": _half(blocks, 0)}


def _q5_1(blocks: Bytes) -> dict[str, Array]:
    return {"codes": _five_bits(blocks, 4).view(np.int8), "scale": _half(blocks, 0), "minimum": _half(blocks, 2)}


def _q8_0(blocks: Bytes) -> dict[str, Array]:
    return {"codes": blocks[:, 2:34].view(np.int8), "scale": _half(blocks, 0)}


def _q3_k(blocks: Bytes) -> dict[str, Array]:
    # 32 bytes of high bits, 64 of low pairs, 12 of sixteen 6-bit scales, d.
    high, low = blocks[:, :32], blocks[:, 32:96].reshape(-1, 2, 1, 32)
    pairs = (low >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3).reshape(-1, 256)
    set_bits = (high[:, None] >> np.arange(8, dtype=np.uint8)[:, None] & 1).reshape(-1, 256)
    packed = blocks[:, 96:108]
    high_scales = (packed[:, None, 8:] >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3).reshape(-1, 16)
    return {
        "codes": (pairs | set_bits << 2).view(np.int8) - np.int8(4),
        "scale": _half(blocks, 108),
        "sub_scale": (_nibbles(packed[:, :8]) | high_scales << 4).view(np.int8) - np.int8(32),
    }


def _q4_k(blocks: Bytes) -> dict[str, Array]:
    return {"codes": _k_nibbles(blocks[:, 16:144]), **_k_scales(blocks)}


def _q5_k(blocks: Bytes) -> dict[str, Array]:
    high = (blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1).reshape(-1, 256)
    codes = _k_nibbles(blocks[:, 48:176]) | high << 4
    return {"codes": codes.view(np.int8), **_k_scales(blocks)}


def _q6_k(blocks: Bytes) -> dict[str, Array]:
    # 128 bytes of low nibbles and 64 of high pairs, each for two halves of 128 columns; sixteen scales; d.
    low = blocks[:, :128].reshape(-1, 2, 1, 64) >> np.array([0, 4], np.uint8)[:, None] & 15
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    codes = low.reshape(-1, 256) | high.reshape(-1, 256) << 4
    return {
        "codes": codes.view(np.int8) - np.int8(32),
        "scale": _half(blocks, 208),
        "sub_scale": blocks[:, 192:208].view(np.int8),
    }


def _mxfp4(blocks: Bytes) -> dict[str, Array]:
    return {"codes": _nibbles(blocks[:, 1:]), "scale": blocks[:, :1]}


def _k_scales(blocks: Bytes) -> dict[str, Array]:
    """d, dmin and the eight 6-bit scales and minima that follow them in Q4_K and Q5_K."""
    first, second, third = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    return {
        "scale": _half(blocks, 0),
        "minimum": _half(blocks, 2),
        "sub_scale": np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=1),
        "sub_minimum": np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=1),
    }


def _half(blocks: Bytes, at: int) -> Array:
    """The float16 at a byte of each block [blocks, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16)


def _nibbles(packed: Bytes) -> Bytes:
    """[..., 2 n] from n bytes: the low halves, then the high ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _k_nibbles(packed: Bytes) -> Bytes:
    """[blocks, 256] from 128 bytes: of each 32 bytes the low halves, then the high ones."""
    return _nibbles(packed.reshape(-1, 4, 32)).reshape(-1, 256)


def _five_bits(blocks: Bytes, at: int) -> Array:
    """[blocks, 32] from the 20 bytes after `at`: their highest bits, then the others as `_nibbles`."""
    highest = np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little")
    return _nibbles(blocks[:, at + 4 : at + 20]) | highest << 4


_PLAIN: dict[str, tuple[Format, str]] = {
    "F32": (Format.F32, "<f4"),
    "F16": (Format.F16, "<f2"),
    "BF16": (Format.BF16, "<u2"),
}
_BLOCKS: dict[str, tuple[Callable[[Bytes], dict[str, Array]], Format]] = {
    "Q4_0": (_q4_0, Format.Q4),
    "Q4_1": (_q4_1, Format.Q4),
    "Q5_0": (_q5_0, Format.Q8),
    "Q5_1": (_q5_1, Format.Q8_MINIMUM),
    "Q8_0": (_q8_0, Format.Q8),
    "Q3_K": (_q3_k, Format.Q6_SUPER16),
    "Q4_K": (_q4_k, Format.Q4_SUPER),
    "Q5_K": (_q5_k, Format.Q8_SUPER),
    "Q6_K": (_q6_k, Format.Q6_SUPER16),
    "MXFP4": (_mxfp4, Format.MXFP4),
}
"""Function that unpacks blocks, and format of the result."""
TYPES = (*_PLAIN, *_BLOCKS)
"""Supported types of tensors, by ggml's names."""
