"""Weights of a GGUF file by the names of transformers, and networks of transformers that they fill."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from specchat.engine.errors import EngineError
from specchat.engine.kernels.packed_matrix import GROUP, Format, MatrixArrays
from specchat.engine.models.checkpoint import MTP, is_finite
from specchat.engine.models.families import family_of_gguf
from specchat.engine.models.family import Order
from specchat.engine.models.gguf import blocks
from specchat.engine.models.gguf.header import GgufHeader, GgufTensor
from specchat.engine.models.packed.decoder_description import OtherFamilyError
from specchat.engine.models.packed.experts import (
    is_experts,
    joined,
    joined_rows,
    matrices_of,
    parameter_of,
    parts_of,
    rows_of_part,
)
from specchat.engine.models.packed.fingerprint import source_fingerprint
from specchat.engine.models.packed.names import KERNEL, LAYER_VECTORS, MATRICES, ROUTER
from specchat.engine.models.packed.quantize import quantize

if TYPE_CHECKING:
    from transformers import PreTrainedModel


Floats = NDArray[np.float32]

_MTP = {"fc": "eh_proj", "pre_fc_norm_embedding": "enorm", "pre_fc_norm_hidden": "hnorm", "norm": "shared_head_norm"}
"""Weights that only a multi-token-prediction layer has, and llama.cpp's names below `nextn`."""
_MTP_LAYER = (
    *("input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm"),
    *MATRICES.values(),
    ROUTER,
    *(f"mlp.shared_expert{part}" for part in ("_gate", ".gate_proj", ".up_proj", ".down_proj")),
)
"""Weights of any layer that it may have, besides experts."""
_SPELLED = {
    LAYER_VECTORS["sinks"]: "self_attn.sinks.weight",
    LAYER_VECTORS["scale"]: "layer_scalar.weight",
    ".dt_bias": ".dt_proj.bias",
    ".expert_bias": ".expert_bias.bias",
    ".e_score_correction_bias": ".e_score_correction.bias",
    LAYER_VECTORS["router_norm"]: "router.proj.scale",
    LAYER_VECTORS["expert_scale"]: "experts.down_proj.scale",
}
"""Ends of names, and what llama.cpp's converter gives to gguf's map of names instead."""
_SUFFIXES = (".weight", ".bias", ".scale")
_JOINED = "ffn_gate_up_exps.weight"
"""End of llama.cpp's name of gate and up of all experts in one tensor."""
_VECTORS = (KERNEL, ".conv1d.", ".A_log", ".D", "mamba.norm", "mixer.norm")
"""Parts of the names of vectors that files may have in two dimensions."""
_CHUNK = 1 << 24
"""Number of weights that are dequantised at a time."""


class GgufSource:
    """Weights of a GGUF file, with their codes, by the names and in the order of transformers.

    What llama.cpp's converter changes (`conversion` in its repository) is undone here.

    Args:
        header: of the file.
        config: of the model.

    Attributes:
        format: display name of the format of most weights: Q4_1.
        header: of the file.
        family: of the model.

    Raises:
        EngineError: the architecture, or the type of a tensor, is not supported.
    """

    def __init__(self, header: GgufHeader, config: Any) -> None:
        family = family_of_gguf(header.architecture)
        if family is None:
            raise OtherFamilyError(
                f"{header.path} is of architecture {header.architecture}, which does not run on the quantised kernels"
            )
        for tensor in header.tensors.values():
            blocks.check_type(header, tensor)
        self._config, self.family = config, family
        self.format = blocks.most_common_type(header)
        self.header, self._names = header, header.names()
        self._layers, self._experts = (
            config.num_hidden_layers,
            getattr(config, "num_experts", 0) or getattr(config, "num_local_experts", 0),
        )
        self._rows, self._columns = family.orders(config)

    def fingerprint(self) -> str:
        """Fingerprint of the network."""
        return source_fingerprint(self, self._config)

    def network(self) -> PreTrainedModel:
        """The network of the modelling code, parameters on the meta device; buffers, such as frequencies, are real."""
        import accelerate
        from transformers import AutoModelForCausalLM

        auto: Any = AutoModelForCausalLM
        with accelerate.init_empty_weights(include_buffers=False):
            network: PreTrainedModel = auto.from_config(self._config).eval()
        network.tie_weights()
        return network

    def fill(
        self,
        network: PreTrainedModel,
        dtype: torch.dtype,
        chosen: Callable[[Tensor], bool] = lambda _: True,
        bar: Callable[[list[str]], Iterable[str]] = iter,
    ) -> None:
        """Give the result of `network` its weights.

        Args:
            network: buffers that are weights are set too, in their dtype.
            dtype: of the parameters.
            chosen: which of them are set.
            bar: shows progress through their names.
        """
        state, tied = network.state_dict(keep_vars=True), network.all_tied_weights_keys
        for name in bar([name for name, old in state.items() if name not in tied and chosen(old)]):
            old, optional = state[name], name.endswith(".bias") and not self.has(name)  # as in llama.cpp
            is_parameter = isinstance(old, nn.Parameter)
            kept = dtype if is_parameter else old.dtype  # biases by which experts are chosen need float32
            values = torch.zeros(old.shape, dtype=kept) if optional else self.entry(name, kept, old.shape)
            state[name] = nn.Parameter(values, requires_grad=False) if is_parameter else values
            _set(network, name, state[name])
        for name, other in tied.items():
            if name in state and other in state:  # neither has become a quantised layer
                _set(network, name, state[other])

    def has(self, name: str) -> bool:
        """Whether there is such a weight."""
        return self._find(name) is not None

    def matrix(self, name: str, cut: tuple[str, Order] | None = None) -> MatrixArrays:
        """A two-dimensional weight, or one of all experts, one after the other.

        It keeps its codes. Only where columns have to change places across blocks it gets new ones, of 8 bits.

        Args:
            name: of it.
            cut: the stored weight that has its rows, and which, if it is not stored by itself.
        """
        if cut:
            return self.matrix(cut[0]).rows(cut[1])
        columns = self._order(self._columns, name)
        arrays = blocks.read_matrix(self.header, self._tensor(name), self._row_order(name))
        if isinstance(columns, slice):
            return arrays
        return with_columns(arrays, columns) or quantize(self.values(name, torch.float32), "q8")

    def vector(self, name: str) -> Floats:
        """A weight kept as a vector, flat. Where the modelling code multiplies by 1 + w, llama.cpp stores that."""
        tensor, order = self._tensor(name), self._row_order(name)
        values = blocks.read_vector(self.header, tensor)
        if not isinstance(order, slice):
            values = values.reshape(len(order), -1)[order].ravel()
        if name.endswith(".A_log"):
            return np.log(-values)
        is_norm = "norm" in name.rsplit(".", 2)[-2] and "linear_attn" not in name
        return values - np.float32(self.family.norm_offset) if is_norm else values

    def values(self, name: str, dtype: torch.dtype) -> Tensor:
        """A weight, dequantised: [rows, columns], or flat if it is one of `vector`.

        Raises:
            EngineError: it holds values that are not numbers.
        """
        tensor, columns = self._tensor(name), self._order(self._columns, name)
        if _is_vector(tensor, name):
            made = torch.from_numpy(self.vector(name)).to(dtype)
        else:
            rows, width = tensor.elements // tensor.shape[0], tensor.shape[0]
            order = np.arange(rows)[self._row_order(name)]
            made = torch.empty(len(order), width, dtype=dtype)
            for start in range(0, len(order), step := max(_CHUNK // width, 1)):
                part = blocks.dequantized_rows(self.header, tensor, order[start : start + step])
                made[start : start + step] = torch.from_numpy(part[:, columns])
        if not is_finite(made):
            raise self.header.damaged(name)
        return made

    def entry(self, name: str, dtype: torch.dtype, shape: torch.Size | None = None) -> Tensor:
        """A weight as in transformers' state dict, where matrices of experts are joined; in its shape, if given."""
        if is_experts(name):
            parts = [self.values(part, dtype) for part in matrices_of(name)]
            flat = [part.flatten() if name.endswith("_bias") else part for part in parts]
            return joined(flat, self._experts, in_turn=self.family.experts_in_turn).contiguous()
        if not self.has(name) and (cuts := parts_of(self.family.parts(self._config), name)):
            values = joined_rows([self.values(part, dtype) for part in cuts], [*cuts.values()])
        else:
            values = self.values(name, dtype)
        return values if shape is None else values.view(shape)

    def sample(self, name: str, places: NDArray[np.int64]) -> Tensor:
        """Entries of a weight, by flat index, before quantisation by specchat."""
        if name.endswith(".bias") and not self.has(name):
            return torch.zeros(len(places))
        tensor = self._tensor(name)
        if _is_vector(tensor, name):
            return torch.from_numpy(self.vector(name)[places])
        rows, columns = np.divmod(places, tensor.shape[0])
        row_order, column_order = self._row_order(name), self._order(self._columns, name)
        values = blocks.dequantized_rows(self.header, tensor, rows if isinstance(row_order, slice) else row_order[rows])
        return torch.from_numpy(values[:, column_order][np.arange(len(rows)), columns])

    def mtp_weights(self) -> dict[str, Tensor]:
        """Weights of the multi-token-prediction layer, by the names of checkpoints, bfloat16; empty without one."""
        if not self.family.mtp or not self.has("mtp.fc.weight"):
            return {}
        names = [f"{name}.weight" for name in (*_MTP, *(f"layers.0.{part}" for part in _MTP_LAYER))]
        if self.has("mtp.layers.0.mlp.experts.down_proj.weight"):
            names += ["layers.0.mlp.experts.gate_up_proj", "layers.0.mlp.experts.down_proj"]
        found = {
            f"mtp.{name}": self.entry(f"mtp.{name}", torch.bfloat16)
            for name in names
            if is_experts(name) or self.has(f"mtp.{name}")
        }
        return {name: each.view(1, -1) if "shared_expert_gate" in name else each for name, each in found.items()}

    def _find(self, name: str) -> GgufTensor | None:
        if name.startswith(MTP):
            part = name.removeprefix(MTP).removesuffix(".weight")
            if part in _MTP:
                return self.header.tensors.get(f"blk.{self._layers}.nextn.{_MTP[part]}.weight")
            name = name.replace("mtp.layers.0.", f"model.layers.{self._layers}.")
        # gguf maps both up_proj and the fused gate_up_proj to ffn_up.
        if "up_proj" in name and ("gate_up_proj" in name) != self.family.fused:
            return None
        end = next((end for end in _SPELLED if name.endswith(end)), "")
        spelled = name.removesuffix(end) + _SPELLED.get(end, "")
        known = (self._names.get_name(each, try_suffixes=_SUFFIXES) for each in (spelled, self.family.usual(spelled)))
        found = self.header.tensors.get(next(filter(None, known), ""))
        parameter = parameter_of(name)[0] if is_experts(name) else name
        if found is None and parameter != name:
            return self.header.tensors.get(f"{self._names.get_name(parameter)}.weight")
        return found

    def _tensor(self, name: str) -> GgufTensor:
        tensor = self._find(name)
        if tensor is None:
            reason = f"lacks weights ({name}): fetch the file again"
            if self.header.is_mtp_alone:
                reason = "has a multi-token-prediction layer alone: give the file of its model, and this one as --draft"
            elif any(key.endswith("attn_qkv.weight") for key in self.header.tensors) and name.endswith("q_proj.weight"):
                reason = "has queries, keys and values in one matrix: choose a file that was made without --fuse-qkv"
            raise EngineError(f"{self.header.path} {reason}")
        return tensor

    def _row_order(self, name: str) -> Order | slice:
        """Indices that bring the file's rows into transformers' order; where gate and up are one tensor, one's rows."""
        tensor = self._tensor(name)
        if not tensor.name.endswith(_JOINED):
            return self._order(self._rows, name)
        rows = np.arange(tensor.elements // tensor.shape[0]).reshape(self._experts, -1)
        return rows[:, rows_of_part(rows.shape[1], *parameter_of(name)[1:], in_turn=False)].ravel()

    def _order(self, orders: Mapping[str, Order], name: str) -> Order | slice:
        """Indices that bring the file's rows or columns into transformers' order.

        Raises:
            EngineError: there are more or fewer of them than the settings state.
        """
        order = next((order for part, order in orders.items() if part in name), None)
        if order is None:
            return slice(None)
        tensor = self._tensor(name)
        rows, columns = tensor.elements // tensor.shape[0], tensor.shape[0]
        size = columns if orders is self._columns else columns if len(tensor.shape) == 1 else rows
        if len(order) != size:
            raise EngineError(
                f"{self.header.path} has {size} rows of {tensor.name}, and its settings state {len(order)}: "
                "fetch the file again"
            )
        return order


def _set(network: nn.Module, name: str, value: Tensor) -> None:
    module, _, last = name.rpartition(".")
    setattr(network.get_submodule(module), last, value)


def _is_vector(tensor: GgufTensor, name: str) -> bool:
    return len(tensor.shape) == 1 or any(part in name for part in _VECTORS)


_SAME_GROUPS = {
    Format.Q4_SUPER: Format.Q4,
    Format.Q8_SUPER: Format.Q8_MINIMUM,
    **{form: form for form in (Format.Q4, Format.Q8, Format.Q8_MINIMUM)},
}
"""Formats with a scale per 32 columns, to formats without an outer scale."""


def with_columns(arrays: MatrixArrays, columns: Order) -> MatrixArrays | None:
    """A matrix with its columns in another order, and the scale of each group rounded to float16.

    None if columns of a group would be parted.
    """
    if arrays.scale is None:
        return MatrixArrays(arrays.format, arrays.codes[:, columns])
    groups = columns.reshape(-1, GROUP)
    whole = (groups == groups[:, :1] + np.arange(GROUP)).all() and not (groups[:, 0] % GROUP).any()
    if arrays.format not in _SAME_GROUPS or not whole:
        return None
    scale, minimum = (
        None if part is None else part[:, groups[:, 0] // GROUP].astype(np.float16) for part in arrays.group_scales()
    )
    return MatrixArrays(_SAME_GROUPS[arrays.format], arrays.codes[:, columns], scale, minimum)
