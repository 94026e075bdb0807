"""Quantisation of weights to 8-bit or 4-bit codes in groups of 32, and of the layers of a network."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor, nn

from specchat.engine.kernels.library import library
from specchat.engine.kernels.packed_matrix import (
    GROUP,
    PANEL,
    Format,
    MatrixArrays,
    PackedMatrix,
    QuantizedEmbedding,
    QuantizedLinear,
    aligned,
    pack,
    packed_bytes,
)

_FORMATS = {"q8": Format.Q8, "q4": Format.Q4}
METHODS = tuple(_FORMATS)
PLAIN = {torch.bfloat16: Format.BF16, torch.float16: Format.F16, torch.float32: Format.F32}
"""Dtypes that can be quantised."""
_AT_ONCE = 1 << 20
"""Weights that a thread quantises in one task."""


def quantize(weights: Tensor, method: str) -> MatrixArrays:
    """Quantise W [N, K] (a dtype of `PLAIN`, finite, K a multiple of 32) to the nearest codes.

    q8 is symmetric, with the scale (largest absolute weight / 127); q4 has the group's minimum and the scale
    (maximum - minimum) / 15. Codes are chosen for the scale as rounded to float16.
    """
    weights = weights.detach().contiguous()
    rows, columns = weights.shape
    codes = np.empty((rows, columns), np.int8 if method == "q8" else np.uint8)
    scale = np.empty((rows, columns // GROUP), np.float16)
    minimum = None if method == "q8" else np.empty_like(scale)

    def run(first: int) -> None:
        part = slice(first, first + at_once)
        library().c.sk_quantize(
            int(PLAIN[weights.dtype]),
            weights[part].data_ptr(),
            scale[part].size,
            codes[part].ctypes.data,
            scale[part].ctypes.data,
            None if minimum is None else minimum[part].ctypes.data,
        )

    at_once = max(_AT_ONCE // columns, 1)
    if rows <= at_once:
        run(0)
    else:
        with ThreadPoolExecutor(torch.get_num_threads()) as threads:
            list(threads.map(run, range(0, rows, at_once)))
    return MatrixArrays(_FORMATS[method], codes, scale, minimum)


def can_quantize(weight: Tensor) -> bool:
    """Whether the columns of a weight [out, in] are a multiple of the group size."""
    return weight.shape[1] % GROUP == 0


def quantized_linear(weight: Tensor, bias: Tensor | None = None, method: str = "q8") -> QuantizedLinear:
    """A layer y = x Wᵀ + b with the quantised weight W [out, in]."""
    return QuantizedLinear(pack(quantize(weight, method)), bias)


def quantized_rows(rows_of: Callable[[Tensor], Tensor], rows: Tensor, method: str) -> QuantizedLinear:
    """A layer of these rows of a weight, quantised part by part: all of them as floats may not fit into memory.

    Args:
        rows_of: gives rows [n, K] of the weight.
        rows: [N], int64.
        method: of `METHODS`.
    """
    columns, kind = rows_of(rows[:1]).shape[1], _FORMATS[method]
    at_once = max(_AT_ONCE // columns // PANEL, 1) * PANEL
    matrix = PackedMatrix(kind, len(rows), columns, aligned(packed_bytes(kind, len(rows), columns)))

    def run(first: int) -> None:
        part, start = rows[first : first + at_once], packed_bytes(kind, first, columns) if first else 0
        codes = pack(quantize(rows_of(part), method)).data
        matrix.data[start : start + codes.nbytes] = codes

    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        list(threads.map(run, range(0, len(rows), at_once)))
    return QuantizedLinear(matrix)


def quantize_network(network: nn.Module, method: str = "q8") -> None:
    """Replace every linear layer and table of rows of a network that can be quantised."""
    for module in list(network.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Linear and can_quantize(child.weight):
                setattr(module, name, quantized_linear(child.weight, child.bias, method))
            elif type(child) is nn.Embedding and can_quantize(child.weight):
                setattr(module, name, QuantizedEmbedding(pack(quantize(child.weight, method))))
