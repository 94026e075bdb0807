"""Packed matrices and linear layers: right, and the same bits whatever instruction set, width or threads."""

import numpy as np
import pytest
import torch

from specchat.engine.kernels.library import KernelError, Library
from specchat.engine.kernels.packed_matrix import (
    Format,
    MatrixArrays,
    PackedMatrix,
    QuantizedLinear,
    aligned,
    pack,
    packed_bytes,
    unpack,
)
from tests.engine.kernels.conftest import variants
from tests.engine.kernels.matrices import QUANTISED, quantised_activations, random_matrix
from tests.engine.kernels.variants import Variant, use


def linear(matrix: PackedMatrix, x: np.ndarray, threads: int = 1, bias: torch.Tensor | None = None) -> np.ndarray:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return QuantizedLinear(matrix, bias)(torch.from_numpy(x)).numpy()
    finally:
        torch.set_num_threads(before)


def activations(tokens: int, columns: int, seed: int = 1) -> np.ndarray:
    x = np.random.default_rng(seed).normal(0, 1, (tokens, columns)).astype(np.float32)
    x[:, 3] *= 50  # one large value makes the others of its group coarse
    if columns >= 64:
        x[0, 32:64] = 0
    return x


@pytest.mark.parametrize("kind", Format)
@pytest.mark.parametrize("rows", [1, 16, 37])
def test_unpacking_gives_the_weights_that_were_packed(kind: Format, rows: int) -> None:
    matrix, weights = random_matrix(kind, rows, 512)
    assert np.allclose(unpack(matrix), weights, rtol=1e-6, atol=1e-9)
    assert np.array_equal(matrix.rows_of([rows - 1, 0]), unpack(matrix)[[rows - 1, 0]])


@pytest.mark.parametrize("kind", Format)
def test_a_layer_is_the_product_with_quantised_activations(kind: Format) -> None:
    matrix, weights = random_matrix(kind, 40, 768)
    x = activations(5, 768)
    seen = quantised_activations(x) if kind in QUANTISED else x
    wanted = seen.astype(np.float64) @ weights.astype(np.float64).T
    assert np.allclose(linear(matrix, x), wanted, rtol=1e-5, atol=2e-5 * np.abs(wanted).max())


@pytest.mark.daily(16)
@pytest.mark.parametrize("kind", Format)
@pytest.mark.parametrize("variant", variants())
def test_every_instruction_set_gives_the_scalar_bits(kernels: Library, kind: Format, variant: Variant) -> None:
    half_block = [(20, 96)] if kind in (Format.Q4, Format.Q8, Format.MXFP4) else []
    for rows, columns in ((16, 256), (5, 512), (83, 1280), (33, 2304), *half_block):
        matrix, _ = random_matrix(kind, rows, columns, seed=rows)
        bias = torch.randn(rows, generator=torch.Generator().manual_seed(1))
        for tokens in (1, 2, 3, 7, 8, 9, 17, 40):
            x = activations(tokens, columns, seed=tokens)
            use(kernels, Variant.SCALAR)
            wanted = linear(matrix, x, bias=bias)
            use(kernels, variant)
            assert np.array_equal(linear(matrix, x, bias=bias).view(np.int32), wanted.view(np.int32))


@pytest.mark.parametrize("kind", Format)
def test_a_row_does_not_depend_on_those_beside_it_nor_on_threads(kind: Format) -> None:
    matrix, _ = random_matrix(kind, 200, 512)
    x = activations(40, 512)
    whole = linear(matrix, x, threads=1)
    assert np.array_equal(linear(matrix, x, threads=3), whole)
    for tokens in range(1, 40):
        assert np.array_equal(linear(matrix, x[-tokens:], threads=1 + tokens % 3), whole[-tokens:])


@pytest.mark.parametrize("variant", variants())
def test_nan_makes_its_row_nan_and_no_other(kernels: Library, variant: Variant) -> None:
    matrix, _ = random_matrix(Format.Q4, 40, 64)
    x = activations(3, 64)
    x[1, 40] = np.nan
    use(kernels, variant)
    found = linear(matrix, x)
    assert np.isnan(found[1]).all()
    assert np.isfinite(found[[0, 2]]).all()


@pytest.mark.parametrize("kind", Format)
def test_rows_are_picked_as_they_are(kind: Format) -> None:
    matrix, _ = random_matrix(kind, 70, 512)
    wanted = np.array([69, 3, 16, 15, 3, *range(20, 40)])
    picked = matrix.picked(wanted)
    assert np.array_equal(unpack(picked), matrix.rows_of(wanted))
    x = torch.randn(3, 512)
    assert torch.equal(QuantizedLinear(picked)(x), QuantizedLinear(matrix)(x)[:, wanted])
    with pytest.raises(KernelError, match="there is no row 70"):
        matrix.picked([70])


@pytest.mark.parametrize(
    ("kind", "columns", "sentence"),
    [(Format.Q4, 48, "rows of 48 weights cannot be divided into groups of 32"), (Format.Q4_SUPER, 320, "of 256")],
)
def test_rows_that_groups_do_not_divide_are_refused(kind: Format, columns: int, sentence: str) -> None:
    with pytest.raises(KernelError, match=sentence):
        packed_bytes(kind, 16, columns)


def test_arrays_that_do_not_fit_are_refused() -> None:
    codes, scale = np.zeros((16, 64), dtype=np.uint8), np.zeros((16, 2), np.float16)
    for arrays, sentence in (
        (MatrixArrays(Format.Q4, codes), "scale is missing in this format"),
        (MatrixArrays(Format.Q8, codes, scale[:, :1]), r"scale has the shape \[16, 1\] and not \[16, 2\]"),
        (MatrixArrays(Format.Q8, codes, scale, scale), "minimum is not part of this format"),
        (MatrixArrays(Format.Q8, codes, scale.astype(np.float32)), "scale is float32"),
    ):
        with pytest.raises(KernelError, match=sentence):
            pack(arrays)
    with pytest.raises(KernelError, match=r"takes \d+ bytes"):
        PackedMatrix(Format.Q8, 16, 64, aligned(64))
