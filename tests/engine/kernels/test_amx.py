"""AMX tiles: the bits of the other instruction sets, with the tile instructions emulated in plain C++."""

import ctypes
import platform
import shutil
import subprocess
from ctypes import c_int
from pathlib import Path

import numpy as np
import pytest

from specchat.engine.kernels.build import compile_sources, find_compiler, link
from specchat.engine.kernels.library import KernelError, Library, library, missing
from specchat.engine.kernels.packed_matrix import Format, PackedMatrix
from tests.engine.kernels.matrices import QUANTISED, random_matrix
from tests.engine.kernels.test_linear import activations
from tests.engine.kernels.variants import Variant, use, variants_of

HERE = Path(__file__).parent
EMULATED = ('-DSK_TILES="emulated_tiles.h"', f"-I{HERE}", "-O1")
"""Little optimised: the scalar kernels take most of the time of a build, and the bits are the same."""
NAME = "AMX int8 and AVX-512 VNNI"
WITHOUT_SUPER_BLOCKS = (Format.Q4, Format.Q8, Format.Q8_MINIMUM, Format.MXFP4)


class Emulated:
    """The kernels built with emulated tiles: a library, and the program that prints digests."""

    def __init__(self, folder: Path) -> None:
        compiler = str(find_compiler())
        objects = compile_sources(folder, compiler, platform.machine(), [HERE / "digests.cpp"], EMULATED)
        self.library, self.digests = folder / "emulated.so", folder / "digests"
        link(objects, self.library, compiler, "-shared")
        link(objects, self.digests, compiler)


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Emulated:
    if missing() or Variant.AVX512 not in variants_of(library()):
        pytest.skip("needs AVX-512 VNNI for emulated tiles")
    return Emulated(tmp_path_factory.mktemp("amx"))


def linear(
    kernels: Library, matrix: PackedMatrix, x: np.ndarray, bias: np.ndarray | None = None, threads: int = 1
) -> np.ndarray:
    y = np.empty((len(x), matrix.rows), np.float32)
    kernels.c.sk_linear(
        matrix.c, None if bias is None else bias.ctypes.data, x.ctypes.data, len(x), y.ctypes.data, threads
    )
    return y.view(np.int32)


@pytest.mark.slow
def test_tiles_give_the_bits_of_the_scalar_kernels(emulated: Emulated) -> None:
    kernels, plain = Library(emulated.library), ctypes.CDLL(str(emulated.library))
    products, left_loaded = plain.emulated_products, plain.emulated_threads_with_tiles
    products.restype = left_loaded.restype = c_int
    assert Variant.AMX in variants_of(kernels)
    assert (kernels.variant, kernels.notice) == (NAME, None)
    for kind in QUANTISED:
        shapes = [(5, 256), (43, 512), (33, 1280)]
        if kind in WITHOUT_SUPER_BLOCKS:
            shapes += [(20, 32), (19, 96)]
        for rows, columns in shapes:
            matrix, _ = random_matrix(kind, rows, columns, seed=rows)
            bias = np.random.default_rng(rows).normal(0, 1, rows).astype(np.float32)
            x = activations(40, columns)
            use(kernels, Variant.SCALAR)
            wanted = linear(kernels, matrix, x, bias)
            use(kernels, Variant.AMX)
            for tokens in range(1, 41):
                before = products()
                got = linear(kernels, matrix, x[:tokens], bias, threads=1 + tokens % 3)
                assert np.array_equal(got, wanted[:tokens]), (kind, rows, columns, tokens)
                assert (products() > before) == (tokens >= 8)
            assert left_loaded() == 0


@pytest.mark.slow
def test_decoders_drafts_and_samples_have_the_same_bits_with_tiles(emulated: Emulated) -> None:
    out = subprocess.run([str(emulated.digests)], capture_output=True, text=True, check=True).stdout
    digests = dict(line.rsplit(" ", 1) for line in out.splitlines())
    assert NAME in digests
    assert len(set(digests.values())) == 1


@pytest.mark.slow
def test_wrong_tiles_are_not_used(emulated: Emulated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECCHAT_WRONG_TILES", "1")
    copy = shutil.copy(emulated.library, tmp_path / "wrong.so")  # loaded anew, so that it looks anew
    kernels = Library(Path(copy))
    assert Variant.AMX not in variants_of(kernels)
    assert kernels.variant == "AVX-512 VNNI"
    assert kernels.notice.startswith("the AMX instructions of this processor gave other sums")
    with pytest.raises(KernelError, match="gave other sums"):
        use(kernels, Variant.AMX)


def test_where_there_are_no_tiles_a_sentence_says_why(kernels: Library) -> None:
    if Variant.AMX in variants_of(kernels):
        use(kernels, Variant.AMX)
        assert kernels.variant == NAME
        return
    before = kernels.variant
    with pytest.raises(KernelError, match="AMX"):
        use(kernels, Variant.AMX)
    assert kernels.variant == before
