"""Weights as the kernels read them: packed from codes and scales, lossless."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specchat.engine.kernels.library import KernelError, library
from specchat.engine.kernels.structures import CMatrix

_ALIGNMENT = 64


class Format(IntEnum):
    """How a weight is stored (`sk_format` of api.h; layout.h describes the bytes)."""

    Q4 = 0
    """4-bit codes, float16 scale and minimum per 32: scale x code + minimum (Q4_0, Q4_1)."""
    Q4_SUPER = 1
    """4-bit codes: d x sub_scale x code - dmin x sub_minimum, 6 bits per 32 and float16 per 256 (Q4_K)."""
    Q8 = 2
    """Signed 8-bit codes, float16 scale per 32 (Q8_0, Q5_0)."""
    Q8_MINIMUM = 3
    """As Q8, with a float16 minimum per 32 (Q5_1)."""
    Q8_SUPER = 4
    """Signed 8-bit codes with the scales of Q4_SUPER (Q5_K)."""
    Q8_SUPER16 = 5
    """Signed 8-bit codes: d x sub_scale x code, signed 8 bits per 16 and float16 per 256 (Q6_K, Q3_K)."""
    BF16 = 6
    F16 = 7
    F32 = 8


_CODES = {Format.Q4: "u1", Format.Q4_SUPER: "u1", Format.BF16: "u2", Format.F16: "u2", Format.F32: "f4"}
_NEIGHBOURS = {Format.Q4_SUPER: 256, Format.Q8_SUPER: 256, Format.Q8_SUPER16: 256}
"""Columns that share a float16 scale, where they are not 32."""
_WITH_MINIMUM = (Format.Q4, Format.Q4_SUPER, Format.Q8_MINIMUM, Format.Q8_SUPER)
_SUB = {Format.Q4_SUPER: (32, "u1"), Format.Q8_SUPER: (32, "u1"), Format.Q8_SUPER16: (16, "i1")}
"""Columns that share a small scale, and its type."""


@dataclass(frozen=True, eq=False, slots=True)
class PackedMatrix:
    """W [rows, columns] of y = x Wᵀ.

    Args:
        format: of the weights.
        rows: outputs.
        columns: inputs.
        data: uint8 [packed_bytes(format, rows, columns)], at a multiple of 64 bytes; may be mapped from a file.

    Raises:
        KernelError: the data are of another length, or not aligned.
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
            raise KernelError(f"a packed matrix must lie at a multiple of {_ALIGNMENT} bytes: pack it again")

    @property
    def c(self) -> CMatrix:
        """As the library takes it; valid while this object lives."""
        return CMatrix(int(self.format), 0, self.rows, self.columns, self.data.ctypes.data)

    def part(self, first: int, rows: int) -> PackedMatrix:
        """Rows `first` to `first` + `rows` - 1, both multiples of 16, in the same memory."""
        before, own = (packed_bytes(self.format, n, self.columns) if n else 0 for n in (first, rows))
        return PackedMatrix(self.format, rows, self.columns, self.data[before : before + own])

    def rows_of(self, indices: Sequence[int] | NDArray[np.int64]) -> NDArray[np.float32]:
        """Some rows [len(indices), columns], exactly as the kernels compute with them."""
        rows = np.ascontiguousarray(indices, dtype=np.int64)
        out = np.empty((len(rows), self.columns), dtype=np.float32)
        library().unpack(self.c, rows.ctypes.data, len(rows), out.ctypes.data)
        return out

    def picked(self, indices: Sequence[int] | NDArray[np.int64]) -> PackedMatrix:
        """A matrix of its own of some rows, in the order given, as they are."""
        rows = np.ascontiguousarray(indices, dtype=np.int64)
        data = aligned(packed_bytes(self.format, len(rows), self.columns))
        library().pick(self.c, rows.ctypes.data, len(rows), data.ctypes.data)
        return PackedMatrix(self.format, len(rows), self.columns, data)


def packed_bytes(kind: Format, rows: int, columns: int) -> int:
    """Bytes of a packed matrix.

    Raises:
        KernelError: groups do not divide the columns, or there are no kernels here.
    """
    return library().packed_bytes(int(kind), rows, columns)


def pack(
    kind: Format,
    codes: NDArray[Any],
    scale: NDArray[Any] | None = None,
    minimum: NDArray[Any] | None = None,
    sub_scale: NDArray[Any] | None = None,
    sub_minimum: NDArray[Any] | None = None,
    out: NDArray[np.uint8] | None = None,
) -> PackedMatrix:
    """Pack codes [N, K] and what turns them into weights.

    Args:
        kind: the format, which says which arrays there are.
        codes: uint8 0 to 15 for 4 bits, int8 for 8; of unquantised formats the values, or their bits as uint16.
        scale: float16 [N, K/32], or [N, K/256] of the SUPER formats.
        minimum: of the same shape, added (subtracted times sub_minimum in the SUPER formats).
        sub_scale: uint8 [N, K/32], or int8 [N, K/16] of Q8_SUPER16.
        sub_minimum: uint8 [N, K/32].
        out: where the packed bytes go; new memory if not given.

    Raises:
        KernelError: groups do not divide K, or an array is missing or of another shape.
    """
    rows, columns = codes.shape
    size = packed_bytes(kind, rows, columns)
    near = _NEIGHBOURS.get(kind, 32)
    sub_columns, sub_type = _SUB.get(kind, (32, "u1"))
    quantised = kind < Format.BF16
    arrays = (
        _as("codes", codes, _CODES.get(kind, "i1"), (rows, columns), True),
        _as("scale", scale, "u2", (rows, columns // near), quantised),
        _as("minimum", minimum, "u2", (rows, columns // near), kind in _WITH_MINIMUM),
        _as("sub_scale", sub_scale, sub_type, (rows, columns // sub_columns), kind in _SUB),
        _as("sub_minimum", sub_minimum, "u1", (rows, columns // 32), kind in (Format.Q4_SUPER, Format.Q8_SUPER)),
    )
    data = aligned(size) if out is None else out
    matrix = PackedMatrix(kind, rows, columns, data)
    addresses = [None if array is None else array.ctypes.data for array in arrays]
    library().pack(int(kind), rows, columns, *addresses, data.ctypes.data)
    return matrix


def unpack(matrix: PackedMatrix) -> NDArray[np.float32]:
    """The weights [rows, columns], exactly as the kernels compute with them."""
    return matrix.rows_of(range(matrix.rows))


def aligned(size: int) -> NDArray[np.uint8]:
    """New memory at a multiple of 64 bytes."""
    block = np.empty(size + _ALIGNMENT, dtype=np.uint8)
    start = -block.ctypes.data % _ALIGNMENT
    return block[start : start + size]


def _as(name: str, array: NDArray[Any] | None, dtype: str, shape: tuple[int, int], wanted: bool) -> NDArray[Any] | None:
    """The array as contiguous values of this type; two-byte floats as their bits."""
    if array is None or not wanted:
        if wanted or array is not None:
            raise KernelError(f"{name} {'is missing' if wanted else 'has no place'} in this format")
        return None
    if array.shape != shape:
        raise KernelError(f"{name} has the shape {list(array.shape)} and not {list(shape)}")
    if array.dtype.itemsize != np.dtype(dtype).itemsize:
        raise KernelError(f"{name} is {array.dtype}, which is not of {np.dtype(dtype).itemsize} bytes")
    return np.ascontiguousarray(array)
