"""Weights of an unquantised model as 8-bit or 4-bit codes in groups of 32."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specchat.engine.kernels.packed_matrix import Format
from specchat.engine.models.matrix_arrays import GROUP, MatrixArrays

METHODS = ("q8", "q4")
_ROWS = 4096
"""Rows quantised at once, so that a large matrix needs little memory beside itself."""


def quantize(weights: NDArray[np.float32], method: str) -> MatrixArrays:
    """W [N, K] with K a multiple of 32, rounded to the nearest codes.

    q8 is symmetric, its scale the largest absolute weight / 127; q4 has the group's minimum, and as its scale
    (maximum - minimum) / 15. Codes are chosen for the scale as float16 has it.
    """
    parts = [_FUNCTIONS[method](weights[i : i + _ROWS]) for i in range(0, len(weights), _ROWS)]
    names = ("codes", "scale", "minimum")
    joined = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in names
        if getattr(parts[0], name) is not None
    }
    return MatrixArrays(parts[0].format, **joined)


def _q8(weights: NDArray[np.float32]) -> MatrixArrays:
    groups = weights.reshape(len(weights), -1, GROUP)
    scale = (np.abs(groups).max(axis=-1) / 127).astype(np.float16)
    codes = np.rint(groups * _inverse(scale)).clip(-127, 127).astype(np.int8)
    return MatrixArrays(Format.Q8, codes.reshape(weights.shape), scale)


def _q4(weights: NDArray[np.float32]) -> MatrixArrays:
    groups = weights.reshape(len(weights), -1, GROUP)
    minimum = groups.min(axis=-1).astype(np.float16)
    above = groups - minimum[..., None].astype(np.float32)
    scale = (above.max(axis=-1) / 15).astype(np.float16)
    codes = np.rint(above * _inverse(scale)).clip(0, 15).astype(np.uint8)
    return MatrixArrays(Format.Q4, codes.reshape(weights.shape), scale, minimum)


def _inverse(scale: NDArray[np.float16]) -> NDArray[np.float32]:
    """1 / scale per group [N, groups, 1]; 0 where the scale is 0."""
    plain = scale.astype(np.float32)
    inverse: NDArray[np.float32] = np.divide(1.0, plain, out=np.zeros_like(plain), where=plain != 0)[..., None]
    return inverse


_FUNCTIONS = {"q8": _q8, "q4": _q4}
