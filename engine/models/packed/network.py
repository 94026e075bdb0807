"""Networks of transformers with quantised linear layers: on a GPU, and on the CPU for other families."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from specchat.engine.device.device import trim_heap
from specchat.engine.errors import EngineError
from specchat.engine.kernels.packed_matrix import GROUP, MatrixArrays, QuantizedEmbedding, QuantizedLinear, pack
from specchat.engine.models.checkpoint import Checkpoint
from specchat.engine.models.families import family_of_gguf
from specchat.engine.models.gguf.blocks import TYPES, dequantized_rows, most_common_type, read_matrix
from specchat.engine.models.gguf.header import GgufHeader, GgufTensor
from specchat.engine.models.linear_layers import join_layers
from specchat.engine.models.load import LoadedModel, fingerprint, load_model, weight_bytes
from specchat.engine.models.model_config import model_config
from specchat.engine.models.packed import gpu_layers
from specchat.engine.models.packed.gguf_source import GgufSource
from specchat.engine.models.packed.load import require_decoder_only
from specchat.engine.models.packed.names import EMBEDDING
from specchat.engine.models.packed.quantize import quantize
from specchat.engine.progress import Progress

_LEAST_SHARE = 0.5
"""Minimum share of weights in layers that can be quantised; below it, quantisation does not pay."""
_COMPARED = 16
"""Number of rows compared to recognise a tensor."""
_STORED = {frozenset({"BF16"}): torch.bfloat16, frozenset({"F16"}): torch.float16}


class Codes:
    """Source of the quantised weights: codes of a GGUF file, or new ones.

    New codes of embedding and output layer always have 8 bits. With a file of a family without `source`, a weight that
    is not stored as it is loaded gets new codes.

    Args:
        method: of new codes, one of `engine.models.packed.quantize.METHODS`.
        header: of the GGUF file, if any.
        folder: with the configuration of the model.

    Attributes:
        format: display name of the format of most weights.
        source: all weights of a file, without loading the model; None for families whose order of weights is not known
            here.

    Raises:
        EngineError: the architecture of the file is not known.
    """

    def __init__(self, method: str, header: GgufHeader | None, folder: Path) -> None:
        self._method, self._header = method, header
        self.format = most_common_type(header) if header else method.upper()
        self.source: GgufSource | None = None
        if header and family_of_gguf(header.architecture):
            config = model_config(Checkpoint.open(folder, header.parameters))
            self.source = GgufSource(header, config.get_text_config())
        self._names: Any = header.names() if header else None

    def of(self, name: str, weight: Tensor, *, is_end: bool) -> MatrixArrays:
        """A quantised weight.

        Args:
            name: of the module.
            weight: [out, in], as loaded by transformers.
            is_end: whether it is the embedding or the output layer.
        """
        if self.source is not None:
            stored = f"{name}.weight"
            return self.source.matrix(stored if self.source.has(stored) or not is_end else EMBEDDING)
        if self._header is not None:
            tensor = self._header.tensors.get(f"{self._names.get_name(name)}.weight")
            if tensor is not None and tensor.type in TYPES and _is_same(self._header, tensor, weight):
                return read_matrix(self._header, tensor)
        return quantize(weight, "q8" if is_end else self._method)


def _is_same(header: GgufHeader, tensor: GgufTensor, weight: Tensor) -> bool:
    """Whether some rows of a tensor equal the same rows of the loaded weight."""
    if tuple(reversed(tensor.shape)) != tuple(weight.shape):
        return False
    rows = np.unique(np.linspace(0, len(weight) - 1, _COMPARED, dtype=np.int64))
    found = torch.from_numpy(dequantized_rows(header, tensor, rows)).to(weight.dtype)
    return torch.equal(found, weight[torch.from_numpy(rows)])


def load_quantized_network(
    folder: Path, codes: Codes, device: torch.device, progress: Progress, stage: str = "target"
) -> LoadedModel:
    """Load a network whose linear layers and embedding are quantised.

    Args:
        folder: as for `engine.models.load.load_model`.
        codes: source of the quantised weights.
        device: computes in float32 on a CPU, in bfloat16 on a GPU.
        stage: for `progress`: target or draft.

    Raises:
        EngineError: as for `load_model` and `check_kernel`, or most weights are not in linear layers.
    """
    source, computed = codes.source, torch.float32 if device.type == "cpu" else torch.bfloat16
    if device.type != "cpu":
        gpu_layers.check_kernel(device)
    elsewhere = source.header.parameters if source else 0
    dtype = _STORED.get(frozenset(Checkpoint.open(folder, elsewhere).dtypes), torch.float32)
    loaded = load_model(folder, torch.device("cpu"), dtype, progress, stage, source)
    require_decoder_only(loaded, "codes need")
    fingerprint(loaded.model)  # before the weights are replaced
    rest: nn.Module = loaded.model
    try:
        if source:  # biases before they become a part of quantised layers
            source.fill(loaded.model, computed, lambda weight: weight.ndim < 2)
        _quantize(loaded.model, codes, device)
        if source:
            source.fill(loaded.model, computed, lambda weight: weight.is_meta)
        for parameter in rest.parameters():  # buffers, such as rotary frequencies, stay in float32
            parameter.data = parameter.data.to(computed)
        rest.to(device)
        if device.type == "cuda":
            join_layers(rest)
        gpu_layers.choose_products(part for part in rest.modules() if isinstance(part, gpu_layers.GpuQuantizedLinear))
    except torch.OutOfMemoryError as error:
        raise EngineError(f"{folder} does not fit into the memory of {device}: choose a smaller model") from error
    trim_heap()
    return replace(loaded, quantized=codes.format, weight_bytes=weight_bytes(loaded.model))


def _quantize(network: Any, codes: Codes, device: torch.device) -> None:
    """Replace layers one at a time: each weight is freed as soon as it is packed.

    On a CPU they run on our kernels, else on torch's int4 kernel, which cannot compute with every weight: such layers
    stay as they are. Tied embedding and output layer share their codes.
    """
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
    on_cpu = device.type == "cpu"
    while places:
        module, name, path = places.pop(0)
        child = getattr(module, name)
        is_end = child in (embedding, output)
        if tied and is_end and table is not None:
            placed = table
        else:
            weight = child.weight.detach().T if _is_transposed(child) else child.weight.detach()
            arrays = codes.of(path, weight, is_end=is_end)
            placed = pack(arrays) if on_cpu else arrays if gpu_layers.fits(arrays) else None
            table = placed if is_end else table
        if placed is not None and _is_linear(child):
            bias = getattr(child, "bias", None)
            made = QuantizedLinear(placed, bias) if on_cpu else gpu_layers.GpuQuantizedLinear(placed, bias, device)
            setattr(module, name, made)
        elif placed is not None:
            table_layer = QuantizedEmbedding(placed) if on_cpu else gpu_layers.GpuQuantizedEmbedding(placed, device)
            setattr(module, name, table_layer)


def _is_transposed(layer: nn.Module) -> bool:
    """Whether it is GPT-2's linear layer, whose weight is [in, out]."""
    from transformers.pytorch_utils import Conv1D

    return type(layer) is Conv1D


def _is_linear(layer: nn.Module) -> bool:
    return type(layer) is nn.Linear or _is_transposed(layer)


def _can_be_quantized(layer: nn.Module) -> bool:
    """Whether it is a plain linear layer or embedding (no subclass) whose columns are a multiple of the group size."""
    if not (_is_linear(layer) or type(layer) is nn.Embedding):
        return False
    weight: Any = layer.weight
    return int(weight.shape[0 if _is_transposed(layer) else 1]) % GROUP == 0
