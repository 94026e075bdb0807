"""GGUF blocks as canonical arrays: every weight is what the gguf package dequantises, bit by bit."""

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as GgmlType
from gguf import GGUFWriter, quants

from specchat.engine.errors import EngineError
from specchat.engine.models.gguf.blocks import read_matrix, read_vector
from specchat.engine.models.gguf.header import GgufHeader

ROWS, COLUMNS = 6, 512
SCALES_AT: dict[GgmlType, tuple[int, ...]] = {
    GgmlType.Q4_0: (0,), GgmlType.Q4_1: (0, 2), GgmlType.Q5_0: (0,), GgmlType.Q5_1: (0, 2), GgmlType.Q8_0: (0,),
    GgmlType.Q3_K: (108,), GgmlType.Q4_K: (0, 2), GgmlType.Q5_K: (0, 2), GgmlType.Q6_K: (208,), GgmlType.MXFP4: (),
}  # fmt: skip
"""Bytes of a block where its float16 scales begin."""


def write(file: Path, raw: np.ndarray, kind: GgmlType) -> GgufHeader:
    writer = GGUFWriter(file, "llama")
    writer.add_tensor("odd", np.zeros(3, np.float32))  # so that the next one does not start at 0
    writer.add_tensor("weight", raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufHeader.read(file)


def random_blocks(kind: GgmlType, rows: int = ROWS, columns: int = COLUMNS, scale: float = 0.02) -> np.ndarray:
    """Blocks of any bytes whatever, but for their scales, which are numbers."""
    block, size = quants.GGML_QUANT_SIZES[kind]
    random = np.random.default_rng(kind)
    raw = random.integers(0, 256, (rows, columns // block, size), np.uint8)
    for at in SCALES_AT[kind]:
        raw[..., at : at + 2] = random.normal(0, scale, raw.shape[:2]).astype(np.float16)[..., None].view(np.uint8)
    if kind is GgmlType.MXFP4:
        raw[..., 0] = random.integers(1, 250, raw.shape[:2])  # 0 is taken for no scale, 255 is no number
    return raw.reshape(rows, -1)


@pytest.mark.parametrize("kind", SCALES_AT, ids=lambda kind: kind.name)
def test_blocks_dequantise_to_the_same_bits(kind: GgmlType, tmp_path: Path) -> None:
    raw = random_blocks(kind)
    header = write(tmp_path / "x.gguf", raw, kind)
    arrays = read_matrix(header, header.tensors["weight"])
    assert arrays.shape == (ROWS, COLUMNS)
    # + 0.0: a weight of zero may have either sign
    expected = quants.dequantize(raw, kind) + np.float32(0)
    assert (arrays.values() + np.float32(0)).tobytes() == expected.tobytes()


@pytest.mark.parametrize("kind", [GgmlType.F32, GgmlType.F16, GgmlType.BF16], ids=lambda kind: kind.name)
def test_plain_numbers_stay(kind: GgmlType, tmp_path: Path) -> None:
    weights = np.random.default_rng(0).normal(size=(ROWS, COLUMNS)).astype(np.float32)
    raw = quants.quantize(weights, kind)
    header = write(tmp_path / "x.gguf", raw, kind)
    tensor = header.tensors["weight"]
    assert np.array_equal(read_matrix(header, tensor).values(), quants.dequantize(raw, kind).reshape(ROWS, COLUMNS))
    assert np.array_equal(read_vector(header, header.tensors["odd"]), np.zeros(3, np.float32))


def test_a_large_matrix_is_read_in_parts(tmp_path: Path) -> None:
    random, rows = np.random.default_rng(0), np.array([0, 32767, 32768, 39999])
    raw = random.integers(0, 256, (40000, COLUMNS // 32, 18), np.uint8)
    raw[..., :2] = random.normal(0, 0.02, raw.shape[:2]).astype(np.float16)[..., None].view(np.uint8)
    header = write(tmp_path / "x.gguf", raw.reshape(40000, -1), GgmlType.Q4_0)
    arrays = read_matrix(header, header.tensors["weight"])
    assert arrays.shape == (40000, COLUMNS)
    expected = quants.dequantize(raw[rows].reshape(4, -1), GgmlType.Q4_0)
    assert np.array_equal(arrays.rows(rows).values(), expected)


def test_a_type_that_cannot_be_kept_is_refused_by_name(tmp_path: Path) -> None:
    header = write(tmp_path / "x.gguf", random_blocks(GgmlType.Q4_0), GgmlType.IQ4_NL)
    with pytest.raises(EngineError, match="weight as IQ4_NL, which cannot be kept quantised"):
        read_matrix(header, header.tensors["weight"])


@pytest.mark.parametrize("kind", [GgmlType.Q8_0, GgmlType.MXFP4], ids=lambda kind: kind.name)
def test_scales_that_are_no_numbers_are_found(kind: GgmlType, tmp_path: Path) -> None:
    raw = random_blocks(kind)
    raw[2, :2] = 0xFF
    header = write(tmp_path / "x.gguf", raw, kind)
    with pytest.raises(EngineError, match="weight holds values that are not numbers"):
        read_matrix(header, header.tensors["weight"])
