"""Quantising gives the nearest codes for the scale that is stored, whatever type the weights have."""

from pathlib import Path

import numpy as np
import pytest
import torch

from specchat.engine.kernels.library import missing
from specchat.engine.kernels.packed_matrix import pack
from specchat.engine.models.packed.file import INDEX, WEIGHTS, PackedWeights, PackedWriter
from specchat.engine.models.packed.quantize import PLAIN, quantize

pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")


@pytest.mark.parametrize("dtype", PLAIN)
def test_codes_are_the_nearest(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weights = torch.randn(40, 96) * 0.05
    weights[3], weights[4], weights[5] = 0, 1e-9, weights[5].abs()  # no scale, one that is no number, all positive
    weights = weights.to(dtype)
    groups = weights.float().numpy().reshape(40, 3, 32)

    eight = quantize(weights, "q8")
    scale = (np.abs(groups).max(-1) / np.float32(127)).astype(np.float16)
    assert np.array_equal(eight.scale, scale)
    assert np.array_equal(eight.codes.reshape(groups.shape), np.rint(groups * inverse(scale)).clip(-127, 127))

    four = quantize(weights, "q4")
    minimum = groups.min(-1).astype(np.float16)
    above = groups - minimum.astype(np.float32)[..., None]
    scale = (above.max(-1) / np.float32(15)).astype(np.float16)
    assert np.array_equal(four.minimum, minimum)
    assert np.array_equal(four.scale, scale)
    assert np.array_equal(four.codes.reshape(groups.shape), np.rint(above * inverse(scale)).clip(0, 15))


def inverse(scale: np.ndarray) -> np.ndarray:
    plain = scale.astype(np.float32)[..., None]
    return np.divide(np.float32(1), plain, out=np.zeros_like(plain), where=plain != 0)


def test_a_large_matrix_is_written_as_one(tmp_path: Path) -> None:
    arrays = quantize(torch.randn(40000, 32, generator=torch.Generator().manual_seed(0)), "q4")
    with (tmp_path / WEIGHTS).open("wb") as file:
        writer = PackedWriter(file)
        writer.matrix("large", arrays)
        index = writer.index({})
    (tmp_path / INDEX).write_text(index)
    assert np.array_equal(PackedWeights.open(tmp_path).matrix("large").data, pack(arrays).data)
