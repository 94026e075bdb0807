"""Random weights in every format of the kernels, and what they stand for."""

import numpy as np
from numpy.typing import NDArray

from specchat.engine.kernels.packed_matrix import Format, MatrixArrays, PackedMatrix, pack

QUANTISED = [kind for kind in Format if kind < Format.BF16]


def random_matrix(kind: Format, rows: int, columns: int, seed: int = 0) -> tuple[PackedMatrix, NDArray[np.float32]]:
    """A packed matrix, and its weights."""
    arrays, weights = random_arrays(kind, rows, columns, seed)
    return pack(arrays), weights


def random_arrays(kind: Format, rows: int, columns: int, seed: int = 0) -> tuple[MatrixArrays, NDArray[np.float32]]:
    """A matrix, and its weights by the format's formula, computed in float64."""
    rng = np.random.default_rng(seed)
    size = 1.0 / np.sqrt(columns)
    if kind >= Format.BF16:
        values = rng.normal(0, size, (rows, columns)).astype(np.float32)
        if kind is Format.F16:
            codes = values.astype(np.float16)
            return MatrixArrays(kind, codes), codes.astype(np.float32)
        if kind is Format.BF16:
            bits = (values.view(np.uint32) >> 16).astype(np.uint16)
            return MatrixArrays(kind, bits), (bits.astype(np.uint32) << 16).view(np.float32)
        return MatrixArrays(kind, values), values
    four = kind in (Format.Q4, Format.Q4_SUPER, Format.MXFP4)
    codes = rng.integers(0, 16, (rows, columns), dtype=np.uint8) if four else _signed(rng, rows, columns)
    if kind is Format.MXFP4:
        values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
        exponents = rng.integers(118, 123, (rows, columns // 32), dtype=np.uint8)
        exponents[0, :1], exponents[-1, :1] = 0, 1  # a group of zeros, and the smallest of the others
        scale = np.where(exponents == 0, 0.0, 2.0 ** (exponents.astype(np.float64) - 127))
        return MatrixArrays(kind, codes, exponents), _weights(np.concatenate([values, -values])[codes], scale, 32)
    wide = codes.astype(np.float64)
    step = size / (4 if four else 64)
    if kind in (Format.Q4, Format.Q8, Format.Q8_MINIMUM):
        scale = (rng.uniform(0.5, 1.5, (rows, columns // 32)) * step).astype(np.float16)
        if kind is Format.Q8:
            return MatrixArrays(kind, codes, scale), _weights(wide, scale, 32)
        minimum = (rng.uniform(-9, -6, scale.shape) * (step if four else 0.1 * step)).astype(np.float16)
        return MatrixArrays(kind, codes, scale, minimum), _weights(wide, scale, 32, minimum)
    d = (rng.uniform(0.5, 1.5, (rows, columns // 256)) * step / 32).astype(np.float16)
    if kind is Format.Q6_SUPER16:
        codes = codes >> 2  # which have 6 bits
        wide = codes.astype(np.float64)
        sub = rng.integers(-64, 64, (rows, columns // 16), dtype=np.int8)
        return MatrixArrays(kind, codes, d, sub_scale=sub), _weights(wide, np.repeat(_wide(d), 16, 1) * sub, 16)
    dmin = (_wide(d) * (8 if four else 1)).astype(np.float16)
    sub, sub_min = (rng.integers(0, 64, (rows, columns // 32), dtype=np.uint8) for _ in range(2))
    scale, minimum = (np.repeat(_wide(a), 8, 1) * b for a, b in ((d, sub), (-_wide(dmin), sub_min)))
    return MatrixArrays(kind, codes, d, dmin, sub, sub_min), _weights(wide, scale, 32, minimum)


def quantised_activations(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """What the kernels' codes of activations [..., K] stand for: int8 by the largest of each 32."""
    groups = x.reshape(*x.shape[:-1], -1, 32)
    most = np.abs(groups).max(-1, keepdims=True)
    factor = np.where(most > 1e-30, np.float32(127) / np.maximum(most, np.float32(1e-30)), np.float32(0))
    return (np.rint(groups * factor) * (most / np.float32(127))).reshape(x.shape).astype(np.float32)


def _signed(rng: np.random.Generator, rows: int, columns: int) -> NDArray[np.int8]:
    codes = rng.integers(-128, 128, (rows, columns), dtype=np.int8)
    codes[0, :32] = -128  # the code whose size no other has
    return codes


def _wide(array: NDArray[np.float16]) -> NDArray[np.float64]:
    return array.astype(np.float64)


def _weights(
    codes: NDArray[np.float64],
    scale: NDArray[np.float16] | NDArray[np.float64],
    group: int,
    minimum: NDArray[np.float16] | NDArray[np.float64] | None = None,
) -> NDArray[np.float32]:
    weights = codes * np.repeat(scale.astype(np.float64), group, 1)
    if minimum is not None:
        weights += np.repeat(minimum.astype(np.float64), group, 1)
    return weights.astype(np.float32)
