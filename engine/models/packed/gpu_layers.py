"""Quantised linear layers and embeddings for GPUs, on torch's int4 kernel.

`torch._weight_int4pack_mm` computes x Wᵀ in bfloat16 with W = (q - 8) · scale + zero, q 4 bits, scale and zero
bfloat16 per group of 32 columns of a row. An 8-bit code c = 16 · high + low is the sum of two such matrices. Formats
with scales per 16 columns (Q6_K, Q3_K) are first rounded to 8-bit codes with one scale per 32.

The kernel reads the weight again for every 16 rows of x. From some number of rows on, a bfloat16 copy for the time of
the product is faster; how many is measured for each shape (`choose_products`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from specchat.engine.config import keep_compiled_code
from specchat.engine.device.device import Stopwatch
from specchat.engine.errors import EngineError, errors_as, first_line
from specchat.engine.kernels.packed_matrix import GROUP, Format, MatrixArrays
from specchat.engine.models.packed.quantize import quantize

_ROWS = 8
"""The kernel needs a multiple of this number of rows."""
_INNER_TILES = (8, 4, 2)
"""Options for the number of adjacent tiles of 16 columns in the kernel's layout; the largest divisor is the fastest."""

_TRIED = (32, 64, 128, 256, 512, 1024)
"""Numbers of rows from which on dequantising may be faster; more than a round feeds for one sequence."""
_LARGEST = 1 << 27
"""Most weights of a matrix that is dequantised for a product: 256 MB."""
AT_ONCE = 1 << 18
"""Weights whose values are computed at once while loading."""


class _Quantized(nn.Module):
    """A layer whose weight is in its buffers."""

    @property
    def bytes(self) -> int:
        """Memory of the codes and their scales."""
        return sum(part.nbytes for part in self.buffers(recurse=False))


class GpuQuantizedLinear(_Quantized):
    """Quantised `nn.Linear` for inference on a GPU, in bfloat16.

    Args:
        arrays: the weight [out, in], for which `fits` is true.
        bias: [out], or None.
        device: the GPU.
    """

    bias: Tensor | None

    def __init__(self, arrays: MatrixArrays, bias: Tensor | None, device: torch.device) -> None:
        super().__init__()
        self.out_features, self.in_features = arrays.shape
        self.dequantized_from = sys.maxsize
        """Rows of x from which on the product dequantises the weight."""
        self._device = device
        self.register_buffer("bias", None if bias is None else bias.detach().to(device, torch.bfloat16))
        self._matrices: list[tuple[str, str]] = []
        for number, part in enumerate(_four_bit_matrices(arrays)):
            names = (f"_codes_{number}", f"_scales_{number}")
            for name, value in zip(names, _packed(*part, device), strict=True):
                self.register_buffer(name, value)
            self._matrices.append(names)

    @classmethod
    def joined(cls, parts: Sequence[GpuQuantizedLinear]) -> GpuQuantizedLinear | None:
        """A layer with the outputs of all; None if their formats differ or the whole is too large to be dequantised."""
        first = parts[0]
        if any(part._matrices != first._matrices for part in parts):
            return None
        if sum(part.out_features * part.in_features for part in parts) > _LARGEST:
            return None
        made = copy(first)  # whose buffers are replaced
        made._buffers = {}
        made.out_features = sum(part.out_features for part in parts)
        for name, own in first._buffers.items():
            values = [] if own is None else [part.get_buffer(name) for part in parts]
            made.register_buffer(name, torch.cat(values, dim=int(name.startswith("_scales"))) if values else None)
        return made

    @property
    def weight(self) -> Tensor:
        """Dequantised copy [out, in], computed at each access."""
        return self.product(torch.eye(self.in_features, dtype=torch.bfloat16, device=self._device)).T

    def forward(self, x: Tensor) -> Tensor:
        """x Wᵀ + b [..., out] of x [..., in]."""
        rows = x.to(torch.bfloat16).reshape(-1, self.in_features).contiguous()
        y = self.dequantized_product(rows) if len(rows) >= self.dequantized_from else self.product(rows)
        if self.bias is not None:
            y = y + self.bias
        return y.to(x.dtype).view(*x.shape[:-1], self.out_features)

    def product(self, x: Tensor) -> Tensor:
        """bfloat16 x Wᵀ [T, out] of x [T, in], by the kernel."""
        parts = [torch._weight_int4pack_mm(x, codes, GROUP, scales) for codes, scales in self._parts()]
        return parts[0] if len(parts) == 1 else parts[0] + parts[1]

    def dequantized_product(self, x: Tensor) -> Tensor:
        """Like `product`, by a bfloat16 copy of the weight."""
        dequantize = dequantized if torch.compiler.is_compiling() else compiled()
        return x @ dequantize(self._parts()).T

    def _parts(self) -> list[tuple[Tensor, Tensor]]:
        return [(getattr(self, codes), getattr(self, scales)) for codes, scales in self._matrices]


class GpuQuantizedEmbedding(_Quantized):
    """Quantised `nn.Embedding` for inference on a GPU, in bfloat16; every code takes 8 bits.

    Args:
        arrays: the table [vocabulary, d].
        device: the GPU.
    """

    _codes: Tensor
    _scale: Tensor
    _minimum: Tensor | None

    def __init__(self, arrays: MatrixArrays, device: torch.device) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = arrays.shape
        codes, scale, minimum = _grouped(arrays)
        self.register_buffer("_codes", codes.to(device))
        self.register_buffer("_scale", scale.to(device, torch.bfloat16))
        self.register_buffer("_minimum", None if minimum is None else minimum.to(device, torch.bfloat16))

    def forward(self, tokens: Tensor) -> Tensor:
        """Rows [..., d] of tokens [...]."""
        groups = self._codes[tokens].view(*tokens.shape, -1, GROUP).to(torch.float32)
        rows = groups * self._scale[tokens].to(torch.float32)[..., None]
        if self._minimum is not None:
            rows = rows + self._minimum[tokens].to(torch.float32)[..., None]
        return rows.flatten(-2).to(torch.bfloat16)


def check_kernel(device: torch.device) -> None:
    """Check torch's kernel on a small matrix: not every GPU and build of torch has it.

    Raises:
        EngineError: it fails, or the result is wrong.
    """
    weight, x = (torch.randn(16, 64, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    arrays = quantize(weight, "q8")
    with errors_as(lambda error: f"torch's int4 kernel does not run on {device} ({first_line(error)})", RuntimeError):
        found = GpuQuantizedLinear(arrays, None, device)(x.to(device)).cpu()
    if not torch.allclose(found, x @ torch.from_numpy(arrays.values()).T, atol=0.2):
        raise EngineError(f"torch's int4 kernel gives wrong numbers on {device}")


def choose_products(layers: Iterable[GpuQuantizedLinear]) -> None:
    """Set the number of rows from which on each layer dequantises: measured once for the layers of a shape."""
    found: dict[tuple[int, int, int], int] = {}
    for layer in layers:
        kind = (layer.out_features, layer.in_features, len(layer._matrices))
        if kind not in found:
            found[kind] = _dequantized_from(layer) if kind[0] * kind[1] <= _LARGEST else sys.maxsize
        layer.dequantized_from = found[kind]


@torch.inference_mode()
def _dequantized_from(layer: GpuQuantizedLinear) -> int:
    for count in _TRIED:
        x = torch.ones(count, layer.in_features, dtype=torch.bfloat16, device=layer._device)
        x[:, ::2] = -0.5
        kernel, dequantized = layer.product, layer.dequantized_product
        try:
            gap, most = (kernel(x) - dequantized(x)).abs().max(), kernel(x).abs().max()
            if not bool(gap <= 0.05 * most):
                break
            if seconds_of(dequantized, x) < seconds_of(kernel, x):
                return count
        except Exception:  # a compiler fails in many ways; the kernel computes all
            break
    return sys.maxsize


def seconds_of(product: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """Time of a product: the least of five."""
    watch = Stopwatch(x.device)
    for _ in range(5):
        product(x)
        watch.mark()
    return min(watch.seconds())


def fits(arrays: MatrixArrays) -> bool:
    """Whether torch's kernel supports a weight."""
    rows, columns = arrays.shape
    return arrays.format < Format.BF16 and rows % _ROWS == 0 and columns % GROUP == 0


def _four_bit_matrices(arrays: MatrixArrays) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """The 4-bit matrix, or the two whose sum is the 8-bit matrix.

    Yields:
        Codes, uint8 [N, K], 0 to 15, and scale and zero, float32 [N, K/32], of W = (codes - 8) · scale + zero.
    """
    codes, scale, minimum = _grouped(arrays)
    low = 0.0 if minimum is None else minimum
    if codes.dtype is torch.uint8:
        yield codes, scale, low + 8 * scale
    else:
        yield ((codes >> 4) + 8).to(torch.uint8), 16 * scale, torch.zeros_like(scale)
        yield (codes & 15).to(torch.uint8), scale, low + 8 * scale


def _grouped(arrays: MatrixArrays) -> tuple[Tensor, Tensor, Tensor | None]:
    """Codes [N, K], and scale and minimum float32 [N, K/32] (None if it has none) of a weight."""
    if arrays.format is Format.Q6_SUPER16:
        arrays = _with_one_scale(arrays)
    scale, minimum = arrays.group_scales()
    return (
        torch.from_numpy(arrays.integers()),
        torch.from_numpy(scale),
        None if minimum is None else torch.from_numpy(minimum),
    )


def _with_one_scale(arrays: MatrixArrays) -> MatrixArrays:
    """8-bit codes with one scale per 32 columns, made of a few rows at a time, whose float32 values fit into caches."""
    rows, columns = arrays.shape
    step = max(AT_ONCE // columns, 1)
    blocks = (arrays.rows(slice(first, first + step)).values() for first in range(0, rows, step))
    parts = [quantize(torch.from_numpy(values), "q8") for values in blocks]
    codes, scale = (np.concatenate([getattr(part, name) for part in parts]) for name in ("codes", "scale"))
    return MatrixArrays(Format.Q8, codes, scale)


def _packed(codes: Tensor, scale: Tensor, zero: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Codes in the kernel's layout, and bfloat16 [K/32, N, 2] scale and zero."""
    both: Any = (codes[:, ::2] << 4) | codes[:, 1::2]
    tiles = next(count for count in _INNER_TILES if codes.shape[1] % (16 * count) == 0)
    packed = torch._convert_weight_to_int4pack(both.contiguous().to(device), tiles)
    scales = torch.stack((scale, zero), dim=-1).transpose(0, 1).contiguous()
    return packed, scales.to(device, torch.bfloat16)


def dequantized(parts: list[tuple[Tensor, Tensor]]) -> Tensor:
    """bfloat16 [N, K], the sum of matrices in the kernel's layout.

    An int32 has 8 codes of one row: of two adjacent columns at each of four places, 8 columns apart (fragments of
    `mma.m16n8k16`; `matrix_to_m16n8k16_Bint4_layout` in PyTorch's int4mm.cu).
    """
    values = []
    for packed, scales in parts:
        blocks, tiles, _, pairs = packed.shape
        codes = (packed[..., None] >> torch.arange(0, 32, 4, device=packed.device, dtype=torch.int32)) & 15
        split = codes.view(blocks, tiles, 8, 4, pairs, 2, 2, 2)  # row, pair of columns, …, odd column, tile, half of it
        groups = split.permute(0, 2, 1, 4, 6, 7, 3, 5).reshape(blocks * 8, -1, GROUP)
        scale, zero = scales.float().transpose(0, 1)[..., None].unbind(2)
        values.append((groups - 8) * scale + zero)
    return sum(values[1:], values[0]).flatten(1).to(torch.bfloat16)


@lru_cache
def compiled() -> Any:
    """Compile `dequantized`, once."""
    keep_compiled_code()
    return torch.compile(dequantized, dynamic=True)
