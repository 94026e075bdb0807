"""Tensors of published heads: read from a folder, checked, and assigned to a network."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from specchat.engine.drafters.head.layer import LayeredHead
from specchat.engine.drafters.published.find import WEIGHTS, weights_of
from specchat.engine.errors import EngineError, first_line
from specchat.engine.models.packed.load import Model, PackedModel

TO_TARGET, _FROM_TARGET = "d2t", "t2d"
"""Names of the vocabulary maps: distance from a token of the draft vocabulary to that of the target, and which tokens
of the target there are."""


def unfit(folder: Path, reason: str) -> EngineError:
    """The error for a head that cannot be used."""
    return EngineError(f"the draft head {folder} {reason}")


def require(holds: object, folder: Path, reason: str) -> None:
    """Check something about a head.

    Raises:
        EngineError: it does not hold.
    """
    if not holds:
        raise unfit(folder, reason)


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of a head by name, from safetensors or from a pickle that can run no code.

    Raises:
        EngineError: there are none, or the file is damaged, or holds more than tensors.
    """
    file = weights_of(folder)
    if file is None:
        raise unfit(folder, f"has no weights ({' or '.join(WEIGHTS)}): fetch it again")
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        content = torch.load(file, map_location="cpu", weights_only=True)
    except (SafetensorError, OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
        raise EngineError(
            f"{file} is damaged or holds more than weights ({first_line(error)}): fetch it again"
        ) from None
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise EngineError(f"{file} holds no named weights: fetch the draft head again")
    return content


def read_vocabulary(folder: Path, count: int, size: int, tensors: dict[str, Tensor]) -> Tensor:
    """The tokens [V'], int64, that the head scores; takes the maps out of its tensors.

    Args:
        folder: for messages.
        count: V'.
        size: V, of the target.
        tensors: of the head.

    Raises:
        EngineError: the maps are missing, of another size, or contradict each other.
    """
    shift, known = tensors.pop(TO_TARGET, None), tensors.pop(_FROM_TARGET, None)
    if shift is None:
        require(count == size, folder, f"lacks the tensor {TO_TARGET}: fetch it again")
        return torch.arange(count)
    require(
        shift.shape == (count,) and not shift.is_floating_point(),
        folder,
        f"has a vocabulary map {TO_TARGET} of shape {list(shift.shape)}, which is not one whole number for each of its "
        f"{count} tokens: fetch it again",
    )
    tokens = torch.arange(count) + shift.long()
    require(
        int(tokens.min()) >= 0 and int(tokens.max()) < size,
        folder,
        f"has a vocabulary map {TO_TARGET} that points outside of the {size} tokens of its target: fetch it again",
    )
    agrees = known is None or (known.shape == (size,) and torch.equal(known.nonzero().flatten(), tokens.sort().values))
    require(
        agrees and len(set(tokens.tolist())) == count,
        folder,
        f"has vocabulary maps {TO_TARGET} and {_FROM_TARGET} that contradict each other: fetch it again",
    )
    return tokens


def fill(folder: Path, head: LayeredHead, tensors: Mapping[str, Tensor], published: str, ours: str) -> None:
    """Assign tensors to the parameters of a network.

    Args:
        folder: of the head, for messages.
        head: network without weights.
        tensors: by published names.
        published: prefix of published names.
        ours: the prefix that the network's names have instead.

    Raises:
        EngineError: a tensor is missing, unknown, or of another shape than the network's.
    """
    wanted = {
        published + name.removeprefix(ours) if name.startswith(ours) else name: (name, tensor.shape)
        for name, tensor in head.state_dict().items()
    }
    missing, unknown = sorted(wanted.keys() - tensors.keys()), sorted(tensors.keys() - wanted.keys())
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise unfit(folder, f"lacks the tensor {missing[0]}{more}: fetch it again")
    if unknown:
        raise unfit(folder, f"has a tensor {unknown[0]} that no head of its kind has: choose another")
    for name, tensor in tensors.items():
        require(
            tensor.shape == wanted[name][1],
            folder,
            f"has a tensor {name} of shape {list(tensor.shape)}, and its config.json and this target ask for "
            f"{list(wanted[name][1])}: choose the head of this target",
        )
    head.load_state_dict({wanted[name][0]: tensor for name, tensor in tensors.items()}, assign=True)


def hidden_size(target: Model) -> int:
    """The target's hidden size."""
    if isinstance(target, PackedModel):
        return target.shape.hidden
    return int(target.model.config.get_text_config().hidden_size)
