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
from specchat.engine.kernels.packed_matrix import GROUP, MatrixArrays
from specchat.engine.models.checkpoint import weight_files
from specchat.engine.models.gguf.blocks import (
    dequantized_rows,
    most_common_type,
    read_matrix,
    read_vector,
    readable_type,
)
from specchat.engine.models.gguf.header import GgufHeader, GgufTensor
from specchat.engine.models.packed.decoder_description import EMBEDDING, KERNEL, OUTPUT, ROUTER, OtherFamilyError
from specchat.engine.models.packed.quantize import PLAIN, quantize

ARCHITECTURES = ("llama", "qwen2", "qwen3", "qwen3moe", "gemma2", "gemma3", "phi3", "lfm2")
"""llama.cpp's names of the supported families."""
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
        return self._header.tensors.get(self._names.get_name(name, try_suffixes=(".weight", ".bias")) or "")

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

    Args:
        folder: of the model.
        method: one of `engine.models.packed.quantize.METHODS`.

    Attributes:
        format: Q8 or Q4.
    """

    def __init__(self, folder: Path, method: str) -> None:
        from safetensors import safe_open

        self.format = method.upper()
        self._folder, self._method = folder, method
        self._files: dict[str, Any] = {}
        for file in weight_files(folder):
            opened: Any = safe_open(file, framework="pt")
            self._files.update(dict.fromkeys(opened.keys(), opened))

    def has(self, name: str) -> bool:
        """Whether there is such a weight."""
        return name in self._files

    def matrix(self, name: str) -> MatrixArrays:
        """A two-dimensional weight, quantised if it is no router and its columns are a multiple of the group size."""
        weight = self._weight(name)
        if weight.shape[1] % GROUP or name.endswith(f"{ROUTER}.weight"):
            bits = weight.view(torch.uint16) if weight.dtype == torch.bfloat16 else weight
            return MatrixArrays(PLAIN[weight.dtype], bits.numpy())
        return quantize(weight, "q8" if name in (EMBEDDING, OUTPUT) else self._method)

    def vector(self, name: str) -> Floats:
        """A weight kept as a vector, flat."""
        values: Floats = self._weight(name).float().flatten().numpy()
        return values

    def sample(self, name: str, places: NDArray[np.int64]) -> Tensor:
        """Entries of a weight, by flat index, as they are stored."""
        return self._weight(name).flatten()[torch.from_numpy(places)]

    def _weight(self, name: str) -> Tensor:
        """A weight; numbered weights of experts are joined, one after the other."""
        numbered = (name.replace(".experts.", f".experts.{expert}.") for expert in count())
        each = list(takewhile(self.has, numbered)) if ".experts." in name and not self.has(name) else []
        return torch.cat([self._stored(one) for one in each]) if each else self._stored(name)

    def _stored(self, name: str) -> Tensor:
        if name not in self._files:
            raise EngineError(f"{self._folder} lacks weights ({name}): fetch the model again")
        weight: Tensor = self._files[name].get_tensor(name)
        if weight.dtype not in PLAIN:
            raise EngineError(
                f"{self._folder} has {name} as {str(weight.dtype).removeprefix('torch.')}, which cannot be quantised "
                "here: leave quantize at none"
            )
        if not torch.isfinite(weight).all():
            raise EngineError(f"{self._folder} is damaged ({name} holds values that are not numbers): fetch it again")
        return weight


WeightSource = GgufSource | CheckpointSource
"""Weights by their names in transformers' state dicts."""
