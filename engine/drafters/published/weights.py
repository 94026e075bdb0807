"""Tensors of published heads: read from a folder, checked, and assigned to a network."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from specchat.engine.drafters.published.find import WEIGHTS, weights_of
from specchat.engine.errors import EngineError, errors_as, first_line
from specchat.engine.models.packed.load import Model, PackedModel

TO_TARGET, _FROM_TARGET = "d2t", "t2d"
"""Names of the vocabulary maps: distance from a token of the draft vocabulary to that of the target, and which tokens
of the target there are."""


class UnfitError(Exception):
    """Why a head cannot be used, to follow "the draft head <folder>"."""


def require(holds: object, reason: str) -> None:
    """Check something about a head.

    Raises:
        UnfitError: it does not hold.
    """
    if not holds:
        raise UnfitError(reason)


def without_nulls(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config.json without null fields, which say as much as none, in its tables too."""
    return {
        name: without_nulls(value) if isinstance(value, dict) else value
        for name, value in config.items()
        if value is not None
    }


def head_errors(folder: Path) -> AbstractContextManager[None]:
    """Context manager that names the folder of a head that cannot be used."""
    return errors_as(lambda error: f"the draft head {folder} {error}", UnfitError)


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of a head by name, from safetensors or from a pickle that can run no code.

    Raises:
        EngineError: a file is missing or damaged, or holds more than tensors.
        UnfitError: there is no file.
    """
    files = weights_of(folder)
    require(files, f"has no weights ({' or '.join(WEIGHTS)}): fetch it again")
    return {name: tensor for file in files for name, tensor in _read(file).items()}


def _read(file: Path) -> dict[str, Tensor]:
    with errors_as(
        lambda error: f"{file} is damaged or holds more than weights ({first_line(error)}): fetch it again",
        (SafetensorError, OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError),
    ):
        if file.suffix == ".safetensors":
            return load_file(file)
        content = torch.load(file, map_location="cpu", weights_only=True)
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise EngineError(f"{file} holds no named weights: fetch the draft head again")
    return content


def read_vocabulary(count: int, size: int, tensors: dict[str, Tensor]) -> Tensor:
    """The tokens [V'], int64, that the head scores; takes the maps out of its tensors.

    Args:
        count: V'.
        size: V, of the target.
        tensors: of the head.

    Raises:
        UnfitError: the maps are missing, of another size, or contradict each other.
    """
    shift, known = tensors.pop(TO_TARGET, None), tensors.pop(_FROM_TARGET, None)
    if shift is None:
        require(count == size, f"lacks the tensor {TO_TARGET}: fetch it again")
        return torch.arange(count)
    require(
        shift.shape == (count,) and not shift.is_floating_point(),
        f"has a vocabulary map {TO_TARGET} of shape {list(shift.shape)}, which is not one whole number for each of its "
        f"{count} tokens: fetch it again",
    )
    tokens = torch.arange(count) + shift.long()
    outside = f"has a vocabulary map {TO_TARGET} that points outside of the {size} tokens of its target: fetch it again"
    require(int(tokens.min()) >= 0 and int(tokens.max()) < size, outside)
    agrees = known is None or (known.shape == (size,) and torch.equal(known.nonzero().flatten(), tokens.sort().values))
    contradiction = f"has vocabulary maps {TO_TARGET} and {_FROM_TARGET} that contradict each other: fetch it again"
    require(agrees and len(set(tokens.tolist())) == count, contradiction)
    return tokens


def fill(head: nn.Module, tensors: Mapping[str, Tensor], published: str, ours: str) -> None:
    """Assign tensors to the parameters of a network.

    Args:
        head: network without weights.
        tensors: by published names.
        published: prefix of published names.
        ours: the prefix that the network's names have instead.

    Raises:
        UnfitError: a tensor is missing, unknown, or of another shape than the network's.
    """
    wanted = {
        published + name.removeprefix(ours) if name.startswith(ours) else name: (name, tensor.shape)
        for name, tensor in head.state_dict().items()
    }
    missing, unknown = sorted(wanted.keys() - tensors.keys()), sorted(tensors.keys() - wanted.keys())
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise UnfitError(f"lacks the tensor {missing[0]}{more}: fetch it again")
    if unknown:
        raise UnfitError(f"has a tensor {unknown[0]} that no head of its kind has: choose another")
    for name, tensor in tensors.items():
        require(
            tensor.shape == wanted[name][1],
            f"has a tensor {name} of shape {list(tensor.shape)}, and its config.json and this target ask for "
            f"{list(wanted[name][1])}: choose the head of this target",
        )
    head.load_state_dict({wanted[name][0]: tensor for name, tensor in tensors.items()}, assign=True)


def hidden_size(target: Model) -> int:
    """The target's hidden size."""
    if isinstance(target, PackedModel):
        return target.shape.hidden
    return int(target.model.config.get_text_config().hidden_size)


_SETTINGS = ("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor")
_TYPES = ("sliding_attention", "full_attention")
"""Types of layers that settings may be stated for, as in the target; speculators trains all layers with the first."""
_KINDS = ("default", "linear", "llama3", "proportional", "yarn")
"""Rotary embeddings that do not depend on the length of the text."""


def rotary_frequencies(layer: Mapping[str, Any], hidden: int, heads: int, size: int) -> tuple[Tensor, float]:
    """Inverse frequencies [R / 2] of rotary embeddings, which turn R dimensions of a head, and the factor of cosine and
    sine.

    Args:
        layer: settings of the network in config.json.
        hidden: d.
        heads: query heads.
        size: of a head.

    Raises:
        UnfitError: the rotary settings are unknown, or cannot be read.
    """
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    sizes: dict[str, Any] = {"hidden_size": hidden, "num_attention_heads": heads, "head_dim": size}
    sizes["max_position_embeddings"] = int(layer.get("max_position_embeddings", 2048))
    settings = {key: layer[key] for key in _SETTINGS if layer.get(key)}
    by_type = settings.get("rope_parameters", {})
    if one := next((by_type[kind] for kind in _TYPES if kind in by_type), None):
        settings["rope_parameters"] = one
    try:
        config = LlamaConfig(**sizes, **settings)
        stated: Any = config.rope_parameters
        kind = stated["rope_type"]
        require(kind in _KINDS, f"has rotary embeddings of the type {kind!r}, which are not supported")
        if kind != "default":
            make: Callable[[Any], tuple[Tensor, float]] = ROPE_INIT_FUNCTIONS[kind]
            return make(config)
        turned = int(size * stated.get("partial_rotary_factor", 1.0))
        return stated["rope_theta"] ** -(torch.arange(0, turned, 2).float() / turned), 1.0
    except (KeyError, TypeError, ValueError) as error:
        raise UnfitError(
            f"has a config.json with rotary settings that cannot be read ({first_line(error)}): fetch it again"
        ) from None
