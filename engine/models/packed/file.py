"""A packed model on disk: one file of weights that is mapped into memory, and an index of their offsets."""

from __future__ import annotations

import json
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

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
        self._matrices[name] = {
            "format": arrays.format.name,
            "rows": rows,
            "columns": columns,
            "offset": self._align(),
        }
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
    """Matrices and vectors of a packed model, mapped into memory."""

    index: dict[str, Any]
    _bytes: NDArray[np.uint8]

    @classmethod
    def open(cls, folder: Path) -> PackedWeights:
        """Map the weights of a folder.

        Raises:
            PackedFileError: the index or the weights are missing, of another version, cut short or damaged.
        """
        index = read_index(folder)
        file = folder / WEIGHTS
        try:
            with file.open("rb") as opened:
                mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise PackedFileError(f"{file} cannot be read ({error}): it has to be made again") from error
        if len(mapped) != index["bytes"]:
            raise PackedFileError(
                f"{file} is cut short or damaged: it has {len(mapped)} bytes and not {index['bytes']}"
            )
        weights = cls(index, np.frombuffer(mapped, np.uint8))
        weights._check(file)
        return weights

    @property
    def bytes(self) -> int:
        """Length of the file."""
        return self._bytes.nbytes

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

    def _check(self, file: Path) -> None:
        try:
            for place in self.index["matrices"].values():
                size = packed_bytes(Format[place["format"]], place["rows"], place["columns"])
                self._check_place(place["offset"], size)
            for place in self.index["vectors"].values():
                self._check_place(place["offset"], 4 * place["length"])
        except (KeyError, TypeError, ValueError, EngineError) as error:
            raise PackedFileError(f"{file.parent / INDEX} is damaged ({error}): it has to be made again") from error

    def _check_place(self, start: int, size: int) -> None:
        if start % _ALIGNMENT or start < 0 or start + size > self.bytes:
            raise ValueError(f"{size} bytes at {start} are not in the file")


def read_index(folder: Path) -> dict[str, Any]:
    """The index of a packed model.

    Raises:
        PackedFileError: it is missing, damaged or of another version.
    """
    path = folder / INDEX
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(index, dict):
            raise ValueError("no JSON object")
    except (OSError, ValueError) as error:
        raise PackedFileError(f"{path} cannot be read ({error}): it has to be made again") from error
    if index.get("version") != VERSION:
        raise PackedFileError(f"{path} is of version {index.get('version')} and not {VERSION}: it has to be made again")
    if not all(isinstance(index.get(part), dict) for part in ("matrices", "vectors")) or "bytes" not in index:
        raise PackedFileError(f"{path} is damaged: it has to be made again")
    return index
