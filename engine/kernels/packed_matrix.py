"""Weight matrices: arrays of codes and scales, packed losslessly into the kernels' layout, and torch modules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from specchat.engine.kernels.library import CMatrix, KernelError, library

GROUP, SUPER_GROUP, SUB_GROUP = 32, 256, 16
"""Columns per scale; per outer scale of the SUPER formats; per inner scale of `Format.Q6_SUPER16`."""
PANEL = 16
"""Rows of a matrix that are stored, and computed by the kernels, together."""
_ALIGNMENT = 64
Array = NDArray[Any]
Indices = Sequence[int] | NDArray[np.int64]


class Format(IntEnum):
    """How a weight is stored (`sk_format` of api.h; layout.h describes the bytes)."""

    Q4 = 0
    """4-bit codes, float16 scale and minimum per 32: scale x code + minimum (Q4_0, Q4_1)."""
    Q4_SUPER = 1
    """4-bit codes: d x sub_scale x code - dmin x sub_minimum, 6 bits per 32 and float16 per 256 (Q4_K)."""
    Q8 = 2
    """Signed 8-bit codes, float16 scale per 32 (Q8_0, Q5_0)."""
    Q8_MINIMUM = 3
    """Signed 8-bit codes, float16 scale and minimum per 32 (Q5_1)."""
    Q8_SUPER = 4
    """Signed 8-bit codes with the scales of Q4_SUPER (Q5_K)."""
    Q6_SUPER16 = 5
    """Signed 6-bit codes: d x sub_scale x code, signed 8 bits per 16 and float16 per 256 (Q6_K, Q3_K)."""
    MXFP4 = 6
    """4-bit floats (E2M1) and a power of two per 32 (OCP Microscaling Formats 1.0; the experts of gpt-oss)."""
    BF16 = 7
    F16 = 8
    F32 = 9


_CODES = {
    **dict.fromkeys((Format.Q4, Format.Q4_SUPER, Format.MXFP4), "u1"),
    **dict.fromkeys((Format.BF16, Format.F16), "u2"),
    Format.F32: "f4",
}
_SUPER = (Format.Q4_SUPER, Format.Q8_SUPER, Format.Q6_SUPER16)
_WITH_MINIMUM = (Format.Q4, Format.Q4_SUPER, Format.Q8_MINIMUM, Format.Q8_SUPER)
_DOUBLED_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
_NO_NUMBER = 255
"""E8M0 exponent that stands for no number."""


@dataclass(frozen=True, slots=True)
class MatrixArrays:
    """W [N, K] as arrays; None if the format does not have them."""

    format: Format
    codes: Array
    """[N, K]: uint8 (0 to 15) of 4-bit formats, int8 of 8- and 6-bit ones (-32 to 31), else the values (bfloat16 as
    uint16 bits)."""
    scale: Array | None = None
    """float16 [N, K/32], or [N, K/256] of the SUPER formats; uint8 exponents of 2, plus 127, [N, K/32] of MXFP4."""
    minimum: Array | None = None
    """float16, shape as `scale`; added (subtracted times `sub_minimum` in the SUPER formats)."""
    sub_scale: Array | None = None
    """uint8 [N, K/32], or int8 [N, K/16] of `Format.Q6_SUPER16`."""
    sub_minimum: Array | None = None
    """uint8 [N, K/32]."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows (outputs) and columns (inputs)."""
        rows, columns = self.codes.shape
        return int(rows), int(columns)

    def rows(self, chosen: slice | Array) -> MatrixArrays:
        """The matrix of some rows, in the order given."""
        parts = {name: getattr(self, name) for name in ("codes", "scale", "minimum", "sub_scale", "sub_minimum")}
        return replace(self, **{name: part[chosen] for name, part in parts.items() if part is not None})

    def values(self) -> NDArray[np.float32]:
        """The weights, float32 [N, K], rounded once where a minimum is added, as ggml does."""
        if self.format is Format.BF16:
            return (self.codes.astype(np.uint32) << 16).view(np.float32)
        if self.format > Format.BF16:
            return self.codes.astype(np.float32)
        group = SUB_GROUP if self.format is Format.Q6_SUPER16 else GROUP
        codes = self.integers().reshape(len(self.codes), -1, group)
        scale, minimum = self.group_scales()
        values: NDArray[np.float32] = scale[..., None] * codes.astype(np.float32)
        if minimum is not None:
            values += minimum[..., None]
        return values.reshape(self.codes.shape)

    def integers(self) -> Array:
        """What the scales multiply, [N, K]: the codes of most formats, twice the 4-bit floats of MXFP4."""
        return _DOUBLED_E2M1[self.codes] if self.format is Format.MXFP4 else self.codes

    @property
    def is_damaged(self) -> bool:
        """Whether a scale or a minimum is not a number."""
        if self.format is Format.MXFP4:
            return bool(np.any(self.scale == _NO_NUMBER))
        return not all(np.isfinite(each).all() for each in (self.scale, self.minimum) if each is not None)

    def group_scales(self) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
        """Scale and minimum of each group of a quantised format, float32 [N, groups]: scale x integer + minimum."""
        scale = self._per_group(self.scale, self.sub_scale)
        if self.minimum is None:
            return scale, None
        minimum = self._per_group(self.minimum, self.sub_minimum)
        return scale, minimum if self.sub_minimum is None else -minimum

    def _per_group(self, outer: Array | None, inner: Array | None) -> NDArray[np.float32]:
        """The factor of each group, float32 [N, groups]: one array's, or the product of two levels."""
        assert outer is not None
        if self.format is Format.MXFP4:  # 2^-128 is taken for 0
            return np.where(outer == 0, np.float32(0), np.ldexp(np.float32(0.5), outer.astype(np.int32) - 127))
        whole: NDArray[np.float32] = outer.astype(np.float32)
        if inner is None:
            return whole
        return np.repeat(whole, inner.shape[1] // whole.shape[1], axis=1) * inner.astype(np.float32)


@dataclass(frozen=True, eq=False, slots=True)
class PackedMatrix:
    """W [rows, columns] of y = x Wᵀ.

    Args:
        format: of the weights.
        rows: outputs.
        columns: inputs.
        data: uint8 [packed_bytes(format, rows, columns)], aligned to 64 bytes; may be mapped from a file.

    Raises:
        KernelError: the data have another length, or are not aligned.
    """

    format: Format
    rows: int
    columns: int
    data: NDArray[np.uint8]

    def __post_init__(self) -> None:
        size = packed_bytes(self.format, self.rows, self.columns)
        if self.data.dtype != np.uint8 or self.data.nbytes != size or not self.data.flags.c_contiguous:
            raise KernelError(f"a packed matrix of {self.rows} x {self.columns} takes {size} bytes: pack it again")
        if self.data.ctypes.data % _ALIGNMENT:
            raise KernelError(f"a packed matrix must be aligned to {_ALIGNMENT} bytes: pack it again")

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.rows, self.columns

    @property
    def c(self) -> CMatrix:
        """`sk_matrix`; valid while this object lives."""
        return CMatrix(int(self.format), 0, self.rows, self.columns, self.data.ctypes.data)

    def part(self, first: int, rows: int) -> PackedMatrix:
        """View of rows `first` to `first` + `rows` - 1, both multiples of 16."""
        start, size = (packed_bytes(self.format, n, self.columns) if n else 0 for n in (first, rows))
        return PackedMatrix(self.format, rows, self.columns, self.data[start : start + size])

    def rows_of(self, indices: Indices) -> NDArray[np.float32]:
        """Weights of some rows [len(indices), columns], float32, exactly as the kernels compute with them."""
        rows = np.ascontiguousarray(indices, dtype=np.int64)
        out = np.empty((len(rows), self.columns), dtype=np.float32)
        library().c.sk_unpack(self.c, rows.ctypes.data, len(rows), out.ctypes.data)
        return out

    def picked(self, indices: Indices) -> PackedMatrix:
        """Copy of some rows, in the order given, with the same codes."""
        rows = np.ascontiguousarray(indices, dtype=np.int64)
        data = aligned(packed_bytes(self.format, len(rows), self.columns))
        library().c.sk_pick(self.c, rows.ctypes.data, len(rows), data.ctypes.data)
        return PackedMatrix(self.format, len(rows), self.columns, data)


def packed_bytes(kind: Format, rows: int, columns: int) -> int:
    """Bytes of a packed matrix.

    Raises:
        KernelError: the columns are not a multiple of the group size, or the kernels are not available.
    """
    return int(library().c.sk_packed_bytes(int(kind), rows, columns))


def pack(arrays: MatrixArrays) -> PackedMatrix:
    """Pack a matrix.

    Raises:
        KernelError: the columns are not a multiple of the group size, or an array is missing or of another shape.
    """
    kind, (rows, columns) = arrays.format, arrays.shape
    data = aligned(packed_bytes(kind, rows, columns))
    scales = (rows, columns // (SUPER_GROUP if kind in _SUPER else GROUP))
    groups = (rows, columns // GROUP)
    sub_scales, sub_type = ((rows, columns // SUB_GROUP), "i1") if kind is Format.Q6_SUPER16 else (groups, "u1")
    parts = (
        _checked("codes", arrays.codes, _CODES.get(kind, "i1"), (rows, columns), True),
        _checked("scale", arrays.scale, "u1" if kind is Format.MXFP4 else "u2", scales, kind < Format.BF16),
        _checked("minimum", arrays.minimum, "u2", scales, kind in _WITH_MINIMUM),
        _checked("sub_scale", arrays.sub_scale, sub_type, sub_scales, kind in _SUPER),
        _checked("sub_minimum", arrays.sub_minimum, "u1", groups, kind in (Format.Q4_SUPER, Format.Q8_SUPER)),
    )
    addresses = [None if part is None else part.ctypes.data for part in parts]
    library().c.sk_pack(int(kind), rows, columns, *addresses, data.ctypes.data)
    return PackedMatrix(kind, rows, columns, data)


def unpack(matrix: PackedMatrix) -> NDArray[np.float32]:
    """The weights [rows, columns], float32, exactly as the kernels compute with them."""
    return matrix.rows_of(range(matrix.rows))


def aligned(size: int) -> NDArray[np.uint8]:
    """New memory, aligned to 64 bytes."""
    block = np.empty(size + _ALIGNMENT, dtype=np.uint8)
    start = -block.ctypes.data % _ALIGNMENT
    return block[start : start + size]


def _checked(name: str, array: Array | None, dtype: str, shape: tuple[int, int], expected: bool) -> Array | None:
    """The array, contiguous, after a check of its shape and item size."""
    if array is None or not expected:
        if expected or array is not None:
            raise KernelError(f"{name} is {'missing in' if expected else 'not part of'} this format")
        return None
    if array.shape != shape:
        raise KernelError(f"{name} has the shape {list(array.shape)} and not {list(shape)}")
    if array.dtype.itemsize != np.dtype(dtype).itemsize:
        raise KernelError(f"{name} is {array.dtype}, which is not of {np.dtype(dtype).itemsize} bytes")
    return np.ascontiguousarray(array)


class _PackedModule(nn.Module):
    def __init__(self, matrix: PackedMatrix) -> None:
        super().__init__()
        self.matrix = matrix

    @property
    def weight(self) -> Tensor:
        """float32 copy of the weight [rows, columns], computed at each access."""
        return torch.from_numpy(unpack(self.matrix))

    @property
    def bytes(self) -> int:
        """Memory of the packed weight."""
        return self.matrix.data.nbytes


class QuantizedLinear(_PackedModule):
    """`nn.Linear` for inference on the CPU, batch-invariant.

    Args:
        matrix: the packed weight.
        bias: [rows], or None.
    """

    def __init__(self, matrix: PackedMatrix, bias: Tensor | None = None) -> None:
        super().__init__(matrix)
        self.in_features, self.out_features = matrix.columns, matrix.rows
        if bias is not None and bias.shape != (matrix.rows,):
            raise KernelError(f"the bias has the shape {list(bias.shape)} and not [{matrix.rows}]")
        self.bias = None if bias is None else bias.detach().to(torch.float32).contiguous()
        self._linear, self._c = library().c.sk_linear, matrix.c

    @torch.inference_mode()
    def forward(self, x: Tensor) -> Tensor:
        """x Wᵀ + b [..., out] of x [..., in], in the dtype of x."""
        flat = x.to(torch.float32).reshape(-1, self.in_features).contiguous()
        out = torch.empty(len(flat), self.out_features)
        bias = None if self.bias is None else self.bias.data_ptr()
        self._linear(self._c, bias, flat.data_ptr(), len(flat), out.data_ptr(), torch.get_num_threads())
        return out.to(x.dtype).view(*x.shape[:-1], self.out_features)


class QuantizedEmbedding(_PackedModule):
    """`nn.Embedding` for inference on the CPU, in float32.

    Args:
        matrix: the packed table [V, d].
    """

    def __init__(self, matrix: PackedMatrix) -> None:
        super().__init__(matrix)
        self.num_embeddings, self.embedding_dim = matrix.rows, matrix.columns

    @torch.inference_mode()
    def forward(self, tokens: Tensor) -> Tensor:
        """Rows [..., d] of tokens [...]."""
        return torch.from_numpy(self.matrix.rows_of(tokens.flatten().numpy())).view(*tokens.shape, self.embedding_dim)


def array_of(values: Tensor | nn.Module) -> NDArray[np.float32]:
    """The numbers of a weight, which the type checker may take for a module."""
    assert isinstance(values, Tensor)
    return np.ascontiguousarray(values.detach().float().numpy())
