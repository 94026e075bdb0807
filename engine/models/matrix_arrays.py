"""One weight matrix in the canonical arrays that the kernels pack: codes, scales and minima per group."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specchat.engine.kernels.packed_matrix import Format

Array = NDArray[Any]

GROUP, SUPER_GROUP, SUB_GROUP = 32, 256, 16
"""Columns that share a scale; those of the formats with two levels; those of `Format.Q8_SUPER16`'s inner level."""


@dataclass(frozen=True, slots=True)
class MatrixArrays:
    """W [rows, columns] as `engine.kernels.packed_matrix.pack` takes it. What a format does not have is None."""

    format: Format
    codes: Array
    """[N, K]: uint8 of 4-bit formats, int8 of 8-bit ones, else the values (bfloat16 as uint16 bit patterns)."""
    scale: Array | None = None
    """float16 [N, K/32], or [N, K/256] where there are two levels."""
    minimum: Array | None = None
    """float16, as `scale`."""
    sub_scale: Array | None = None
    """uint8 [N, K/32], or int8 [N, K/16] of `Format.Q8_SUPER16`."""
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
        if self.format in (Format.F16, Format.F32):
            return self.codes.astype(np.float32)
        group = SUB_GROUP if self.format is Format.Q8_SUPER16 else GROUP
        codes = self.codes.reshape(len(self.codes), -1, group)
        scale, minimum = self.group_scales()
        values: NDArray[np.float32] = scale[..., None] * codes.astype(np.float32)
        if minimum is not None:
            values += minimum[..., None]
        return values.reshape(self.codes.shape)

    def group_scales(self) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
        """Scale and minimum of each group of a quantised format, float32 [N, groups]: scale x code + minimum."""
        scale = self._per_group(self.scale, self.sub_scale)
        if self.minimum is None:
            return scale, None
        minimum = self._per_group(self.minimum, self.sub_minimum)
        return scale, minimum if self.sub_minimum is None else -minimum

    def _per_group(self, outer: Array | None, inner: Array | None) -> NDArray[np.float32]:
        """The factor of each group, float32 [N, groups]: one array's, or the product of two levels."""
        assert outer is not None
        whole: NDArray[np.float32] = outer.astype(np.float32)
        if inner is None:
            return whole
        return np.repeat(whole, inner.shape[1] // whole.shape[1], axis=1) * inner.astype(np.float32)
