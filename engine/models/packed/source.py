"""Where the weights of a packed model come from: a GGUF file, or the safetensors of a model folder."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specchat.engine.errors import EngineError
from specchat.engine.kernels.packed_matrix import GROUP, MatrixArrays
from specchat.engine.models.checkpoint import weight_files
from specchat.engine.models.decoder_description import OtherFamilyError
from specchat.engine.models.gguf.blocks import GgmlType, dequantized_rows, read_matrix, read_vector, readable_type
from specchat.engine.models.gguf.header import GgufHeader, GgufTensor
from specchat.engine.models.gguf.names import ARCHITECTURES, half_order, transformers_name
from specchat.engine.models.packed.quantize import PLAIN, quantize

Floats = NDArray[np.float32]


class WeightSource(Protocol):
    """Weights by the names they have in transformers' state dicts."""

    @property
    def format(self) -> str:
        """What most weights are stored as, for people: Q4_1, Q8."""

    def has(self, name: str) -> bool:
        """Whether there is such a weight."""

    def matrix(self, name: str) -> MatrixArrays:
        """A weight of two dimensions, its rows in transformers' order."""

    def vector(self, name: str) -> Floats:
        """A weight of one dimension."""

    def sample(self, name: str, places: NDArray[np.int64]) -> Tensor:
        """Some weights, by flat index, before any quantisation of ours."""


class GgufSource:
    """The weights of a GGUF file, with the codes that they have there.

    Args:
        header: of the file.
        heads: query heads and key heads.

    Raises:
        EngineError: its tensors are not known, or one has a type that cannot be kept.
    """

    def __init__(self, header: GgufHeader, heads: tuple[int, int]) -> None:
        if header.architecture not in ARCHITECTURES:
            raise OtherFamilyError(
                f"{header.path} is of architecture {header.architecture}, which does not run on the quantised kernels"
            )
        self._header = header
        self._tensors: dict[str, GgufTensor] = {}
        for tensor in header.tensors.values():
            name = transformers_name(header.architecture, tensor.name)
            if name is not None:
                readable_type(header, tensor)
                self._tensors[name] = tensor
        paired = header.architecture == "llama"
        self._paired = {"self_attn.q_proj": heads[0], "self_attn.k_proj": heads[1]} if paired else {}
        self._norm_offset = np.float32(1 if header.architecture.startswith("gemma") else 0)

    @property
    def format(self) -> str:
        """The type that most weights have."""
        counts: Counter[int] = Counter()
        for tensor in self._tensors.values():
            counts[tensor.type] += tensor.elements
        embedding = self._tensors.get("model.embed_tokens.weight")
        if embedding is not None and len(counts) > 1:
            counts[embedding.type] -= embedding.elements
        return GgmlType(counts.most_common(1)[0][0]).name

    def has(self, name: str) -> bool:
        """Whether there is such a weight."""
        return name in self._tensors

    def matrix(self, name: str) -> MatrixArrays:
        """A weight of two dimensions."""
        return read_matrix(self._header, self._tensor(name), self._order(name))

    def vector(self, name: str) -> Floats:
        """A weight of one dimension. llama.cpp stores Gemma's norms as 1 + w."""
        values = read_vector(self._header, self._tensor(name))[self._order(name)]
        return values - self._norm_offset if name.endswith("norm.weight") else values

    def sample(self, name: str, places: NDArray[np.int64]) -> Tensor:
        """Some weights, by flat index."""
        if len(self._tensor(name).shape) == 1:
            return torch.from_numpy(self.vector(name)[places])
        rows, columns = np.divmod(places, self._tensor(name).shape[0])
        order = self._order(name)
        values = dequantized_rows(self._header, self._tensor(name), rows if isinstance(order, slice) else order[rows])
        return torch.from_numpy(values[np.arange(len(rows)), columns])

    def _tensor(self, name: str) -> GgufTensor:
        if name not in self._tensors:
            raise EngineError(f"{self._header.path} lacks weights ({name}): fetch the file again")
        return self._tensors[name]

    def _order(self, name: str) -> NDArray[np.int64] | slice:
        """The rows of the file's tensor as transformers has them."""
        heads = next((count for part, count in self._paired.items() if part in name), None)
        return half_order(self._tensor(name).shape[-1], heads) if heads else slice(None)


class CheckpointSource:
    """The safetensors of a model folder, quantised to 8 or 4 bits here; embedding and output layer always to 8.

    Args:
        folder: of the model.
        method: one of `engine.models.packed.quantize.METHODS`.
    """

    def __init__(self, folder: Path, method: str) -> None:
        from safetensors import safe_open

        self._folder, self._method = folder, method
        self._files: dict[str, Any] = {}
        for file in weight_files(folder):
            opened: Any = safe_open(file, framework="pt")
            self._files.update(dict.fromkeys(opened.keys(), opened))

    @property
    def format(self) -> str:
        """Q8 or Q4."""
        return self._method.upper()

    def has(self, name: str) -> bool:
        """Whether there is such a weight."""
        return name in self._files

    def matrix(self, name: str) -> MatrixArrays:
        """A weight of two dimensions, quantised where groups divide its rows."""
        weight = self._weight(name)
        if weight.shape[1] % GROUP:
            bits = weight.view(torch.uint16) if weight.dtype == torch.bfloat16 else weight
            return MatrixArrays(PLAIN[weight.dtype], bits.numpy())
        method = "q8" if name in ("model.embed_tokens.weight", "lm_head.weight") else self._method
        return quantize(weight, method)

    def vector(self, name: str) -> Floats:
        """A weight of one dimension."""
        values: Floats = self._weight(name).float().numpy()
        return values

    def sample(self, name: str, places: NDArray[np.int64]) -> Tensor:
        """Some weights, by flat index, as they are stored."""
        return self._weight(name).flatten()[torch.from_numpy(places)]

    def _weight(self, name: str) -> Tensor:
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
