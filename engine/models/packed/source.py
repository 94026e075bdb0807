"""Sources of the weights of a packed model: a GGUF file, or the safetensors of a model folder."""

from __future__ import annotations

from itertools import count, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specchat.engine.errors import EngineError, check
from specchat.engine.kernels.packed_matrix import GROUP, Format, MatrixArrays
from specchat.engine.models.checkpoint import is_finite, text_name, weight_files
from specchat.engine.models.family import Family, Order
from specchat.engine.models.packed.experts import is_experts, parameter_of, rows_of_part
from specchat.engine.models.packed.gguf_source import GgufSource
from specchat.engine.models.packed.names import EMBEDDING, OUTPUT, UNQUANTIZED
from specchat.engine.models.packed.quantize import PLAIN, quantize

_BLOCKS, _SCALES = "_blocks", "_scales"
"""Ends of the names of the two tensors of a weight in MXFP4 (OpenAI's checkpoints of gpt-oss)."""
Floats = NDArray[np.float32]


class CheckpointSource:
    """The safetensors of a model folder, quantised to 8 or 4 bits; embedding and output layer always to 8.

    Experts in MXFP4 keep their codes.

    Args:
        folder: of the model.
        method: one of `engine.models.packed.quantize.METHODS`.
        family: of the model.

    Attributes:
        format: display name of the format of most weights: Q8, Q4 or MXFP4.
    """

    def __init__(self, folder: Path, method: str, family: Family) -> None:
        from safetensors import safe_open

        self._folder, self._method, self.family = folder, method, family
        self._unquantized = tuple(f"{family.name(name)}.weight" for name in UNQUANTIZED)
        self._files: dict[str, tuple[Any, str]] = {}
        """File of each weight, and its name there."""
        for file in weight_files(folder):
            opened: Any = safe_open(file, framework="pt")
            for name in opened.keys():  # noqa: SIM118 the file is no mapping
                self._files[family.of_published(text_name(name))] = (opened, name)
        self.format = Format.MXFP4.name if any(name.endswith(_BLOCKS) for name in self._files) else method.upper()

    def has(self, name: str) -> bool:
        """Whether there is such a weight."""
        return self._parameter(name)[0] in self._files

    def has_own_output(self) -> bool:
        """Whether the output layer has separate weights, which count even if the configuration ties them.

        transformers and llama.cpp decide the same. Some files hold the embedding twice.
        """
        return self.has(OUTPUT) and not (
            self.has(EMBEDDING) and torch.equal(self._tensor(EMBEDDING), self._tensor(OUTPUT))
        )

    def matrix(self, name: str, cut: tuple[str, Order] | None = None) -> MatrixArrays:
        """A two-dimensional weight, quantised unless it is small and much depends on it, or groups do not fit.

        Args:
            name: of it.
            cut: the stored weight that has its rows, and which, if it is not stored by itself.
        """
        if self._is_mxfp4(name):
            arrays = _mxfp4(*self._blocks(name))
            if arrays.is_damaged:
                raise self._damaged(name)
            return arrays
        stored, rows = cut or (name, slice(None))
        weight = self._weight(stored)[rows]
        if weight.shape[1] % GROUP or name.endswith(self._unquantized):
            bits = weight.view(torch.uint16) if weight.dtype == torch.bfloat16 else weight
            return MatrixArrays(PLAIN[weight.dtype], bits.numpy())
        return quantize(weight, "q8" if name in (EMBEDDING, OUTPUT) else self._method)

    def vector(self, name: str) -> Floats:
        """A weight kept as a vector, flat."""
        return self._weight(name).float().flatten().numpy()

    def sample(self, name: str, places: NDArray[np.int64]) -> Tensor:
        """Entries of a weight, by flat index, as they are stored."""
        if name.endswith(".bias") and not self.has(name):
            return torch.zeros(len(places))
        if not self._is_mxfp4(name):
            return self._weight(name).flatten()[torch.from_numpy(places)]
        blocks, scales = self._blocks(name)
        rows, columns = np.divmod(places, blocks[0].size * 2)
        return torch.from_numpy(_mxfp4(blocks[rows], scales[rows]).values()[np.arange(len(rows)), columns])

    def _parameter(self, name: str) -> tuple[str, int, int]:
        """The parameter with the rows of a weight of experts (`parameter_of`); other weights are their own."""
        found = parameter_of(name) if is_experts(name) else (name, 0, 1)
        joined = self.family.experts_in_turn or found[0] in self._files
        return found if joined else (name, 0, 1)

    def _part(self, values: Tensor, number: int, parts: int) -> Tensor:
        """The rows [experts x rows, …] of one matrix in a parameter [experts, rows, …]."""
        in_turn = self.family.experts_in_turn
        return values[:, rows_of_part(values.shape[1], number, parts, in_turn=in_turn)].flatten(0, 1)

    def _is_mxfp4(self, name: str) -> bool:
        return self._parameter(name)[0] + _BLOCKS in self._files

    def _blocks(self, name: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Codes [rows, groups, 16] and exponents [rows, groups] of a weight in MXFP4."""
        parameter, *part = self._parameter(name)
        blocks, scales = (self._part(self._tensor(parameter + end), *part).numpy() for end in (_BLOCKS, _SCALES))
        return blocks, scales

    def _weight(self, name: str) -> Tensor:
        """A weight; numbered weights of experts are joined, one after the other."""
        parameter, *part = self._parameter(name)
        if parameter != name and parameter in self._files:
            values = self._stored(parameter)
            turned = self.family.experts_in_turn and values.ndim == 3
            return self._part(values.transpose(1, 2) if turned else values, *part)
        numbered = (self._numbered(name, expert) for expert in count())
        each = list(takewhile(self.has, numbered)) if is_experts(name) and not self.has(name) else []
        return torch.cat([self._stored(one) for one in each]) if each else self._stored(name)

    def _numbered(self, name: str, expert: int) -> str:
        """Name of one expert's part of a weight of experts, which is that of a dense MLP in the same family."""
        stem, part, suffix = name.rsplit(".", 2)
        return f"{stem}.{expert}.{self.family.name(f'mlp.{part}').rpartition('.')[2]}.{suffix}"

    def _tensor(self, name: str) -> Tensor:
        check(name in self._files, f"{self._folder} lacks weights ({name}): fetch the model again")
        file, stored = self._files[name]
        weight: Tensor = file.get_tensor(stored)
        return weight

    def _stored(self, name: str) -> Tensor:
        weight = self._tensor(name)
        if weight.dtype not in PLAIN:
            raise EngineError(
                f"{self._folder} has {name} as {str(weight.dtype).removeprefix('torch.')}, which cannot be quantised "
                "here: leave quantize at none"
            )
        if not is_finite(weight):
            raise self._damaged(name)
        return weight

    def _damaged(self, name: str) -> EngineError:
        return EngineError(f"{self._folder} is damaged ({name} holds values that are not numbers): fetch it again")


def _mxfp4(blocks: NDArray[np.uint8], scales: NDArray[np.uint8]) -> MatrixArrays:
    """A matrix from its blocks [rows, groups, 16]; the low half of a byte is the earlier column."""
    codes = np.empty((*blocks.shape, 2), np.uint8)
    np.bitwise_and(blocks, 15, out=codes[..., 0])
    np.right_shift(blocks, 4, out=codes[..., 1])
    return MatrixArrays(Format.MXFP4, codes.reshape(len(blocks), -1), scales)


WeightSource = GgufSource | CheckpointSource
"""Weights by their names in transformers' state dicts."""
