"""A packed model on disk: one file of weights, and an index of their offsets."""

from __future__ import annotations

import json
import mmap
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray

from specchat.engine.device.device import available_memory
from specchat.engine.errors import EngineError
from specchat.engine.kernels.packed_matrix import Format, MatrixArrays, PackedMatrix, pack, packed_bytes

INDEX, WEIGHTS = "packed.json", "weights.packed"
VERSION = 2
"""Version of the index and of the packed layout; models of other versions are packed again."""
_ALIGNMENT = 64
_ROWS = 1 << 14
"""Rows that are packed at a time, a multiple of a panel's: an embedding may be as large as the rest of the model."""


class PackedFileError(EngineError):
    """A packed model that is missing, damaged or of another version: it must be packed again."""


class PackedWriter:
    """Writes matrices and vectors; the index, which is written last, completes the model.

    Args:
        file: `WEIGHTS`, opened for writing.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._matrices: dict[str, dict[str, Any]] = {}
        self._vectors: dict[str, dict[str, int]] = {}

    def matrix(self, name: str, arrays: MatrixArrays) -> None:
        """Add a matrix."""
        rows, columns = arrays.shape
        self._matrices[name] = {"format": arrays.format.name, "rows": rows, "columns": columns, "offset": self._align()}
        for first in range(0, rows, _ROWS):
            self._file.write(pack(arrays.rows(slice(first, first + _ROWS))).data.data)

    def vector(self, name: str, values: NDArray[np.float32]) -> None:
        """Add a norm's weights or a bias."""
        self._vectors[name] = {"length": len(values), "offset": self._align()}
        self._file.write(np.ascontiguousarray(values, "<f4").data)

    def index(self, about: dict[str, Any]) -> str:
        """The content of the index after all weights, with further facts about the model."""
        size = self._align()
        index = {"version": VERSION, "bytes": size, "matrices": self._matrices, "vectors": self._vectors, **about}
        return json.dumps(index) + "\n"

    def _align(self) -> int:
        self._file.write(bytes(-self._file.tell() % _ALIGNMENT))
        return self._file.tell()


@dataclass(frozen=True, slots=True)
class PackedWeights:
    """Matrices and vectors of a packed model, as they are in its file."""

    index: dict[str, Any]
    _bytes: NDArray[np.uint8]

    @classmethod
    def open(cls, folder: Path) -> PackedWeights:
        """Read or map the weights of a folder.

        Raises:
            PackedFileError: the index or the weights are missing, of another version, cut short or damaged.
        """
        index, file = read_index(folder), folder / WEIGHTS
        try:
            return cls(index, _content(file, index["bytes"]))
        except (OSError, ValueError) as error:
            raise _unusable(file, f"cannot be read ({error})") from error

    def matrix(self, name: str) -> PackedMatrix:
        """View of a matrix."""
        place = self.index["matrices"][name]
        form, rows, columns, start = Format[place["format"]], place["rows"], place["columns"], place["offset"]
        return PackedMatrix(form, rows, columns, self._bytes[start : start + packed_bytes(form, rows, columns)])

    def vector(self, name: str) -> NDArray[np.float32]:
        """View of a vector, float32."""
        place = self.index["vectors"][name]
        return self._bytes[place["offset"] : place["offset"] + 4 * place["length"]].view("<f4")

    def has(self, name: str) -> bool:
        """Whether there is a matrix or vector of that name."""
        return name in self.index["matrices"] or name in self.index["vectors"]


def read_index(folder: Path) -> dict[str, Any]:
    """The index of a packed model, whose weights are as long as it says.

    Raises:
        PackedFileError: index or weights are missing, damaged, cut short or of another version.
    """
    path, file = folder / INDEX, folder / WEIGHTS
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(index, dict):
            raise ValueError("no JSON object")
        size = file.stat().st_size
    except (OSError, ValueError) as error:
        raise _unusable(path, f"cannot be read ({error})") from error
    if index.get("version") != VERSION:
        raise _unusable(path, f"is of version {index.get('version')} and not {VERSION}")
    try:
        places = [(each["offset"], 4 * each["length"]) for each in index["vectors"].values()]
        places += [
            (each["offset"], packed_bytes(Format[each["format"]], each["rows"], each["columns"]))
            for each in index["matrices"].values()
        ]
        end = index["bytes"]
        for start, length in places:
            if start % _ALIGNMENT or start < 0 or start + length > end:
                raise ValueError(f"{length} bytes at {start} are not in the file")
    except (KeyError, TypeError, ValueError, AttributeError, EngineError) as error:
        raise _unusable(path, f"is damaged ({error})") from error
    if size != end:
        raise _unusable(file, f"is cut short or damaged: it has {size} bytes and not {end}")
    return index


def _unusable(file: Path, why: str) -> PackedFileError:
    return PackedFileError(f"{file} {why}: it has to be made again")


def _content(file: Path, size: int) -> NDArray[np.uint8]:
    """The bytes of a file, in huge pages where the system has them and memory is ample, else mapped.

    With pages of 4 kB, a pass over the weights spends about a fifth of its time looking up addresses.
    """
    with file.open("rb") as opened:
        free = available_memory(torch.device("cpu"))
        if not hasattr(mmap, "MADV_HUGEPAGE") or free is None or free < 2 * size:
            return np.frombuffer(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):  # a kernel without huge pages
            pages.madvise(mmap.MADV_HUGEPAGE)
        if opened.readinto(pages) != size:
            raise OSError("it is being written to")
        return np.frombuffer(pages, np.uint8)
