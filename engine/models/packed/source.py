"""Where the weights of a packed model come from: a GGUF file, or the safetensors of a model folder."""

from __future__ import annotations

from itertools import count, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specchat.engine.errors import EngineError
from specchat.engine.kernels.packed_matrix import GROUP, Format, MatrixArrays
from specchat.engine.models.checkpoint import weight_files
from specchat.engine.models.gguf.blocks import (
    dequantized_rows,
    most_common_type,
    read_matrix,
    read_vector,
    readable_type,
)
from specchat.engine.models.gguf.header import GgufHeader, GgufTensor
from specchat.engine.models.packed.decoder_description import (
    EMBEDDING,
    KERNEL,
    OUTPUT,
    SINKS,
    UNQUANTIZED,
    OtherFamilyError,
)
from specchat.engine.models.packed.experts import IN_TURN, is_experts, parameter_of
from specchat.engine.models.packed.quantize import PLAIN, quantize

ARCHITECTURES = ("llama", "qwen2", "qwen3", "qwen3moe", "gemma2", "gemma3", "phi3", "lfm2", "gpt-oss")
"""llama.cpp's names of the supported families."""
_BLOCKS, _SCALES = "_blocks", "_scales"
"""Ends of the names of the two tensors of a weight in MXFP4 (OpenAI's checkpoints of gpt-oss)."""
_TEXT_PART = "model.language_model."
"""Beginning of names in checkpoints of models that read images too."""
Floats = NDArray[np.float32]


class GgufSource:
    """Weights of a GGUF file, with their codes.

    Args:
        header: of the file.
        heads: number of query heads and of key heads.

    Attributes:
        format: display name of the format of most weights: Q4_1.

    Raises:
        EngineError: the architecture, or the type of a tensor, is not supported.
    """

    def __init__(self, header: GgufHeader, heads: tuple[int, int]) -> None:
        if header.architecture not in ARCHITECTURES:
            raise OtherFamilyError(
                f"{header.path} is of architecture {header.architecture}, which does not run on the quantised kernels"
            )
        for tensor in header.tensors.values():
            readable_type(header, tensor)
        self.format = most_common_type(header)
        self._header, self._names = header, header.names()
        paired = header.architecture == "llama"
        self._paired = {"self_attn.q_proj": heads[0], "self_attn.k_proj": heads[1]} if paired else {}
        self._norm_offset = np.float32(1 if header.architecture.startswith("gemma") else 0)

    def has(self, name: str) -> bool:
        """Whether there is such a weight."""
        return self._find(name) is not None

    def matrix(self, name: str) -> MatrixArrays:
        """A two-dimensional weight, its rows in transformers' order."""
        return read_matrix(self._header, self._tensor(name), self._order(name))

    def vector(self, name: str) -> Floats:
        """A weight kept as a vector, flat. llama.cpp stores Gemma's norms as 1 + w."""
        values = read_vector(self._header, self._tensor(name))[self._order(name)]
        return values - self._norm_offset if name.endswith("norm.weight") else values

    def sample(self, name: str, places: NDArray[np.int64]) -> Tensor:
        """Entries of a weight, by flat index, before quantisation by specchat."""
        tensor, order = self._tensor(name), self._order(name)
        if len(tensor.shape) == 1 or KERNEL in name:
            return torch.from_numpy(self.vector(name)[places])
        rows, columns = np.divmod(places, tensor.shape[0])
        values = dequantized_rows(self._header, tensor, rows if isinstance(order, slice) else order[rows])
        return torch.from_numpy(values[np.arange(len(rows)), columns])

    def _find(self, name: str) -> GgufTensor | None:
        # gguf maps both up_proj and the fused gate_up_proj to ffn_up; only Phi-3 has the latter.
        if "up_proj" in name and ("gate_up_proj" in name) != (self._header.architecture == "phi3"):
            return None
        stored = f"{name}.weight" if name.endswith(SINKS) else name
        return self._header.tensors.get(self._names.get_name(stored, try_suffixes=(".weight", ".bias")) or "")

    def _tensor(self, name: str) -> GgufTensor:
        tensor = self._find(name)
        if tensor is None:
            raise EngineError(f"{self._header.path} lacks weights ({name}): fetch the file again")
        return tensor

    def _order(self, name: str) -> NDArray[np.int64] | slice:
        """Indices that bring the file's rows into transformers' order.

        In query and key projections of Llama models, llama.cpp stores rows that are rotated together next to each
        other; transformers rotates row d with row d + size / 2 of a head.
        """
        heads = next((count for part, count in self._paired.items() if part in name), None)
        if not heads:
            return slice(None)
        rows = self._tensor(name).shape[-1]
        order: NDArray[np.int64] = np.arange(rows).reshape(heads, rows // heads // 2, 2).swapaxes(1, 2).ravel()
        return order


class CheckpointSource:
    """The safetensors of a model folder, quantised to 8 or 4 bits; embedding and output layer always to 8.

    Experts in MXFP4 keep their codes.

    Args:
        folder: of the model.
        method: one of `engine.models.packed.quantize.METHODS`.
        family: transformers' model type.

    Attributes:
        format: display name of the format of most weights: Q8, Q4 or MXFP4.
    """

    def __init__(self, folder: Path, method: str, family: str) -> None:
        from safetensors import safe_open

        self._folder, self._method, self._in_turn = folder, method, family in IN_TURN
        self._files: dict[str, tuple[Any, str]] = {}
        for file in weight_files(folder):
            opened: Any = safe_open(file, framework="pt")
            self._files |= {name.replace(_TEXT_PART, "model."): (opened, name) for name in list(opened.keys())}
        self.format = Format.MXFP4.name if any(name.endswith(_BLOCKS) for name in self._files) else method.upper()

    def has(self, name: str) -> bool:
        """Whether there is such a weight."""
        return self._parameter(name)[0] in self._files

    def matrix(self, name: str) -> MatrixArrays:
        """A two-dimensional weight, quantised unless it is one of `UNQUANTIZED`, or the group size does not fit."""
        if self._is_mxfp4(name):
            arrays = _mxfp4(*self._blocks(name))
            if arrays.is_damaged:
                raise self._damaged(name)
            return arrays
        weight = self._weight(name)
        if weight.shape[1] % GROUP or name.endswith(UNQUANTIZED):
            bits = weight.view(torch.uint16) if weight.dtype == torch.bfloat16 else weight
            return MatrixArrays(PLAIN[weight.dtype], bits.numpy())
        return quantize(weight, "q8" if name in (EMBEDDING, OUTPUT) else self._method)

    def vector(self, name: str) -> Floats:
        """A weight kept as a vector, flat."""
        values: Floats = self._weight(name).float().flatten().numpy()
        return values

    def sample(self, name: str, places: NDArray[np.int64]) -> Tensor:
        """Entries of a weight, by flat index, as they are stored."""
        if not self._is_mxfp4(name):
            return self._weight(name).flatten()[torch.from_numpy(places)]
        blocks, scales = self._blocks(name)
        rows, columns = np.divmod(places, blocks[0].size * 2)
        return torch.from_numpy(_mxfp4(blocks[rows], scales[rows]).values()[np.arange(len(rows)), columns])

    def _parameter(self, name: str) -> tuple[str, slice]:
        """The parameter with the rows of a weight of experts, and their places in it; other weights are their own."""
        return parameter_of(name) if self._in_turn and is_experts(name) else (name, slice(None))

    def _is_mxfp4(self, name: str) -> bool:
        return self._parameter(name)[0] + _BLOCKS in self._files

    def _blocks(self, name: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Codes [rows, groups, 16] and exponents [rows, groups] of a weight in MXFP4."""
        parameter, rows = self._parameter(name)
        blocks, scales = (self._tensor(parameter + part)[:, rows].flatten(0, 1).numpy() for part in (_BLOCKS, _SCALES))
        return blocks, scales

    def _weight(self, name: str) -> Tensor:
        """A weight; numbered weights of experts are joined, one after the other."""
        parameter, rows = self._parameter(name)
        if parameter != name and parameter in self._files:
            values = self._stored(parameter)
            return (values.transpose(1, 2) if values.ndim == 3 else values)[:, rows].flatten(0, 1)
        numbered = (name.replace(".experts.", f".experts.{expert}.") for expert in count())
        each = list(takewhile(self.has, numbered)) if is_experts(name) and not self.has(name) else []
        return torch.cat([self._stored(one) for one in each]) if each else self._stored(name)

    def _tensor(self, name: str) -> Tensor:
        if name not in self._files:
            raise EngineError(f"{self._folder} lacks weights ({name}): fetch the model again")
        file, name = self._files[name]
        stored: Tensor = file.get_tensor(name)
        return stored

    def _stored(self, name: str) -> Tensor:
        weight = self._tensor(name)
        if weight.dtype not in PLAIN:
            raise EngineError(
                f"{self._folder} has {name} as {str(weight.dtype).removeprefix('torch.')}, which cannot be quantised "
                "here: leave quantize at none"
            )
        if not torch.isfinite(weight).all():
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
