"""A network of transformers whose linear layers stay quantised: on the CPU of families the decoder does not know."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from specchat.engine.device.memory import trim_heap
from specchat.engine.errors import EngineError
from specchat.engine.kernels.packed_matrix import PackedMatrix, pack
from specchat.engine.kernels.quantized_layers import QuantizedEmbedding, QuantizedLinear
from specchat.engine.models.checkpoint import Checkpoint
from specchat.engine.models.encoder_decoder import require_decoder_only
from specchat.engine.models.fingerprint import fingerprint
from specchat.engine.models.gguf.blocks import GgmlType, dequantized_rows, read_matrix
from specchat.engine.models.gguf.header import GgufHeader, GgufTensor
from specchat.engine.models.load import LoadedModel, load_model
from specchat.engine.models.matrix_arrays import GROUP, MatrixArrays
from specchat.engine.models.packed.gpu_layers import GpuQuantizedEmbedding, GpuQuantizedLinear, check_kernel, fits
from specchat.engine.models.packed.quantize import quantize
from specchat.engine.progress import Progress

_LEAST_SHARE = 0.5
"""Of the weights, which must be in layers that can be quantised: else it saves neither memory nor time."""
_COMPARED = 16
"""Rows by which a tensor of a file is recognised."""
_QUANTIZED = (QuantizedLinear, QuantizedEmbedding, GpuQuantizedLinear, GpuQuantizedEmbedding)
_STORED = {frozenset({"BF16"}): torch.bfloat16, frozenset({"F16"}): torch.float16}


class Codes(Protocol):
    """Where the codes of a layer come from."""

    @property
    def format(self) -> str:
        """What most weights are stored as, for people."""

    def of(self, name: str, weight: Tensor, *, ends: bool) -> MatrixArrays:
        """A weight [out, in] with its codes.

        Args:
            name: of the module.
            weight: as it was loaded.
            ends: whether it is the embedding or the output layer.
        """


class MadeCodes:
    """Codes made here; embedding and output layer always have 8 bits.

    Args:
        method: one of `engine.models.packed.quantize.METHODS`.
    """

    def __init__(self, method: str) -> None:
        self._method = method

    @property
    def format(self) -> str:
        """Q8 or Q4."""
        return self._method.upper()

    def of(self, name: str, weight: Tensor, *, ends: bool) -> MatrixArrays:  # noqa: ARG002 the same for all names
        """A weight with its codes."""
        return quantize(weight, "q8" if ends else self._method)


class GgufCodes:
    """The codes of a GGUF file; 8 bits where the modelling code has a weight in another order or form.

    Args:
        header: of the file.

    Raises:
        EngineError: its architecture is not known.
    """

    def __init__(self, header: GgufHeader) -> None:
        import gguf

        architectures = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
        if header.architecture not in architectures:
            raise EngineError(f"{header.path} is of architecture {header.architecture}, which is not known here")
        self._header = header
        layers = int(header.metadata[f"{header.architecture}.block_count"])
        self._names = gguf.get_tensor_name_map(architectures[header.architecture], layers)

    @property
    def format(self) -> str:
        """The type that most weights have."""
        counts: Counter[int] = Counter()
        for tensor in self._header.tensors.values():
            counts[tensor.type] += tensor.elements if len(tensor.shape) > 1 else 0
        return GgmlType(counts.most_common(1)[0][0]).name

    def of(self, name: str, weight: Tensor, *, ends: bool) -> MatrixArrays:  # noqa: ARG002 as the file has them
        """A weight with its codes."""
        tensor = self._header.tensors.get(f"{self._names.get_name(name)}.weight")
        if tensor is not None and tensor.type in set(GgmlType) and self._is_the_same(tensor, weight):
            return read_matrix(self._header, tensor)
        return quantize(weight, "q8")

    def _is_the_same(self, tensor: GgufTensor, weight: Tensor) -> bool:
        """Whether a tensor has the rows of a weight that was made of it."""
        if tuple(reversed(tensor.shape)) != tuple(weight.shape):
            return False
        rows = np.unique(np.linspace(0, len(weight) - 1, _COMPARED, dtype=np.int64))
        found = torch.from_numpy(dequantized_rows(self._header, tensor, rows)).to(weight.dtype)
        return torch.equal(found, weight[torch.from_numpy(rows)])


class Layers(Protocol):
    """The layers of a device that compute with codes."""

    dtype: torch.dtype
    """Of what is computed."""

    def place(self, arrays: MatrixArrays) -> Any:
        """A weight as the two methods below take it; None where the device cannot compute with these codes."""

    def linear(self, placed: Any, bias: Tensor | None) -> nn.Module:
        """A linear layer."""

    def embedding(self, placed: Any) -> nn.Module:
        """An embedding."""


class CpuLayers:
    """Layers on our kernels."""

    dtype = torch.float32

    def place(self, arrays: MatrixArrays) -> PackedMatrix:
        """A packed matrix, which layers can share."""
        parts = (arrays.scale, arrays.minimum, arrays.sub_scale, arrays.sub_minimum)
        return pack(arrays.format, arrays.codes, *parts)

    def linear(self, placed: PackedMatrix, bias: Tensor | None) -> nn.Module:
        """A linear layer."""
        return QuantizedLinear(placed, bias)

    def embedding(self, placed: PackedMatrix) -> nn.Module:
        """An embedding."""
        return QuantizedEmbedding(placed)


class GpuLayers:
    """Layers on torch's int4 kernel.

    Args:
        device: the GPU.

    Raises:
        EngineError: as `check_kernel`.
    """

    dtype = torch.bfloat16

    def __init__(self, device: torch.device) -> None:
        check_kernel(device)
        self._device = device

    def place(self, arrays: MatrixArrays) -> MatrixArrays | None:
        """The arrays themselves: the two kinds of layers have them in different forms."""
        return arrays if fits(arrays) else None

    def linear(self, placed: MatrixArrays, bias: Tensor | None) -> nn.Module:
        """A linear layer."""
        return GpuQuantizedLinear(placed, bias, self._device)

    def embedding(self, placed: MatrixArrays) -> nn.Module:
        """An embedding."""
        return GpuQuantizedEmbedding(placed, self._device)


def load_quantized_network(
    folder: Path, codes: Codes, device: torch.device, progress: Progress, stage: str = "target"
) -> LoadedModel:
    """Load a network whose linear layers and embedding compute with codes.

    Args:
        folder: as `engine.models.load.load_model` takes it.
        codes: what becomes of the weights.
        device: which computes: in float32 on a CPU, in bfloat16 on a GPU.
        progress: told of the loading.
        stage: what `progress` is told this is, target or draft.

    Raises:
        EngineError: as `load_model`, `check_kernel`, or few of the weights are in linear layers.
    """
    dtype = _STORED.get(frozenset(Checkpoint.open(folder).dtypes), torch.float32)
    layers: Layers = CpuLayers() if device.type == "cpu" else GpuLayers(device)
    loaded = load_model(folder, torch.device("cpu"), dtype, progress, stage)
    require_decoder_only(loaded, "codes need")
    fingerprint(loaded.model)  # before the weights are replaced
    rest: nn.Module = loaded.model
    try:
        _quantize(loaded.model, codes, layers)
        for parameter in rest.parameters():  # buffers, such as the frequencies of positions, stay in float32
            parameter.data = parameter.data.to(layers.dtype)
        rest.to(device)
    except torch.OutOfMemoryError as error:
        raise EngineError(f"{folder} does not fit into the memory of {device}: choose a smaller model") from error
    trim_heap()
    return replace(loaded, quantized=codes.format, weight_bytes=_bytes(loaded.model))


def _quantize(network: Any, codes: Codes, layers: Layers) -> None:
    """Replace what can be replaced, one layer at a time: each plain weight is freed as soon as it is packed."""
    embedding, output = network.get_input_embeddings(), network.get_output_embeddings()
    tied = output is not None and output.weight is embedding.weight
    places = [
        (module, name, f"{prefix}.{name}".lstrip("."))
        for prefix, module in network.named_modules()
        for name, child in module.named_children()
        if _can_be_quantized(child) and (_is_linear(child) or child is embedding)
    ]
    plain = {id(weight): weight.numel() for weight in network.parameters()}
    packed = sum({id(w): w.numel() for w in (getattr(m, name).weight for m, name, _ in places)}.values())
    if packed < _LEAST_SHARE * sum(plain.values()):
        raise EngineError(
            f"most weights of this {network.config.model_type} model are not in linear layers, which alone can be "
            "quantised"
        )
    table: Any = None
    while places:
        module, name, path = places.pop(0)
        child = getattr(module, name)
        is_end = child in (embedding, output)
        if tied and is_end and table is not None:
            placed = table
        else:
            weight = child.weight.detach() if not _is_transposed(child) else child.weight.detach().T
            placed = layers.place(codes.of(path, weight, ends=is_end))
            table = placed if is_end else table
        if placed is None:
            continue
        if _is_linear(child):
            setattr(module, name, layers.linear(placed, getattr(child, "bias", None)))
        else:
            setattr(module, name, layers.embedding(placed))


def _is_transposed(layer: nn.Module) -> bool:
    """Whether it is the linear layer of GPT-2, whose weight is [in, out]."""
    from transformers.pytorch_utils import Conv1D

    return type(layer) is Conv1D


def _is_linear(layer: nn.Module) -> bool:
    return type(layer) is nn.Linear or _is_transposed(layer)


def _can_be_quantized(layer: nn.Module) -> bool:
    """Whether groups divide its rows; subclasses may do more than their name says."""
    if not (_is_linear(layer) or type(layer) is nn.Embedding):
        return False
    weight: Any = layer.weight
    return int(weight.shape[0 if _is_transposed(layer) else 1]) % GROUP == 0


def held(layer: Any) -> tuple[object, int]:
    """What a linear layer or embedding keeps its weight in, which two layers can share, and its bytes."""
    if hasattr(layer, "bytes"):
        return getattr(layer, "matrix", layer), layer.bytes
    return layer.weight, layer.weight.nbytes


def _bytes(network: nn.Module) -> int:
    """Of all weights; one that two layers share counts once."""
    quantized = dict(held(module) for module in network.modules() if isinstance(module, _QUANTIZED))
    return sum(quantized.values()) + sum(parameter.nbytes for parameter in network.parameters())
