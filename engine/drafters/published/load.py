"""Loading of a published head for a target: sizes, tensors and vocabulary are checked before anything is drafted."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from specchat.engine.drafters.head.folder import LoadedHead
from specchat.engine.drafters.head.layer import LayeredHead, pack_head
from specchat.engine.drafters.published.eagle import EagleHead, EagleShape, unfit
from specchat.engine.drafters.published.find import CONFIG, MEDUSA, WEIGHTS, weights_of
from specchat.engine.errors import EngineError, first_line
from specchat.engine.models.checkpoint import read_json
from specchat.engine.models.families import families
from specchat.engine.models.load import display_name
from specchat.engine.models.packed.load import Model, PackedModel

TARGET, FINGERPRINT = "base_model_name_or_path", "target_fingerprint"
"""Keys of config.json: the target's name, as Medusa's authors state it, and ours, which tells its weights apart."""
TO_TARGET, _FROM_TARGET = "d2t", "t2d"
"""Names of the vocabulary maps."""
_IGNORED = ("verifier_lm_head.weight", "verifier_norm.weight")
"""Of the target, for training."""
_ROTARIES = ("default", "linear", "llama3", "yarn")
"""Rotary embeddings that do not depend on the length of the text."""


def load_published(folder: Path, target: Model) -> LoadedHead:
    """Load a published head for a target.

    Raises:
        EngineError: it does not fit the target, is of an unknown kind, or lacks something.
    """
    kind = read_json(folder / CONFIG).get("model_type")
    if any(kind in family.assistants for family in families()):
        assistant = import_module("specchat.engine.drafters.published.assistant")  # which imports this module
        loaded: LoadedHead = assistant.load_assistant(folder, target)
        return loaded
    head, vocabulary = read_published(folder, target)
    size = pack_head(head, target)
    return LoadedHead(head, vocabulary.to(target.device), display_name(folder), size)


def read_published(folder: Path, target: Model) -> tuple[LayeredHead, Tensor]:
    """A published head as it is stored: its network on the CPU, and its vocabulary [V'], int64.

    Raises:
        EngineError: it does not fit the target, is of an unknown kind, or lacks something.
    """
    tensors = {name: tensor for name, tensor in read_tensors(folder).items() if name not in _IGNORED}
    config = read_json(folder / CONFIG)
    if config.get(FINGERPRINT, target.fingerprint) != target.fingerprint:
        raise unfit(
            folder,
            f"was made for {config.get(TARGET, 'another target')}, with other weights than {target.name} has: choose "
            "the head of this target",
        )
    if MEDUSA in config:
        medusa = import_module("specchat.engine.research.medusa")
        head, vocabulary, published, ours = medusa.network_of(folder, config, tensors, target)
    else:
        shape = _shape_for(folder, config, tensors, target)
        vocabulary = read_vocabulary(folder, shape.draft_vocabulary, shape.vocabulary, tensors)
        taps, rotary = _taps(folder, shape, target.layers), _rotary(folder, shape)
        with torch.device("meta"):
            head = EagleHead(shape, taps, rotary)
        published, ours = shape.prefix, "layer."
    fill(folder, head, tensors, published, ours)
    return head, vocabulary


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


def _shape_for(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], target: Model) -> EagleShape:
    """The shape of an EAGLE head that was made for a target of these sizes."""
    try:
        shape = EagleShape(folder, config, tuple(tensors))
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise unfit(folder, f"cannot be used: its config.json does not state {error}: fetch it again") from None
    hidden = hidden_size(target)
    if shape.target_hidden != hidden:
        raise unfit(
            folder,
            f"was made for a target of hidden size {shape.target_hidden}, and {target.name} has {hidden}: choose the "
            "head of this target",
        )
    if shape.vocabulary != target.vocab_size:
        raise unfit(
            folder,
            f"was made for a vocabulary of {shape.vocabulary} tokens, and {target.name} has {target.vocab_size}: "
            "choose the head of this target",
        )
    return shape


def read_vocabulary(folder: Path, count: int, size: int, tensors: dict[str, Tensor]) -> Tensor:
    """The tokens [V'], int64, that the head scores; takes the maps out of its tensors.

    `d2t` says how far each token of the draft vocabulary is from that of the target; `t2d` which ones there are.

    Args:
        folder: for messages.
        count: V'.
        size: V, of the target.
        tensors: of the head.
    """
    shift, known = tensors.pop(TO_TARGET, None), tensors.pop(_FROM_TARGET, None)
    if shift is None:
        if count != size:
            raise unfit(folder, f"lacks the tensor {TO_TARGET}: fetch it again")
        return torch.arange(count)
    if shift.shape != (count,) or shift.is_floating_point():
        raise unfit(
            folder,
            f"has a vocabulary map {TO_TARGET} of shape {list(shift.shape)}, which is not one whole number for each of "
            f"its {count} tokens: fetch it again",
        )
    tokens = torch.arange(count) + shift.long()
    if int(tokens.min()) < 0 or int(tokens.max()) >= size:
        raise unfit(
            folder,
            f"has a vocabulary map {TO_TARGET} that points outside of the {size} tokens of its target: fetch it again",
        )
    agrees = known is None or (known.shape == (size,) and torch.equal(known.nonzero().flatten(), tokens.sort().values))
    if len(set(tokens.tolist())) != count or not agrees:
        raise unfit(
            folder,
            f"has vocabulary maps {TO_TARGET} and {_FROM_TARGET} that contradict each other: fetch it again",
        )
    return tokens


def _taps(folder: Path, shape: EagleShape, layers: int) -> tuple[int, ...]:
    """The depths it reads: the stated ones; else those of the authors, of EAGLE-1 the last one, normed."""
    if not shape.third:
        return (layers,)
    taps = shape.taps or (2, layers // 2, layers - 3)
    if not all(0 <= tap < layers for tap in taps):
        raise unfit(
            folder,
            f"reads the depths {', '.join(map(str, taps))} of its target, and this one has {layers} layers: choose the "
            "head of this target",
        )
    return taps


def _rotary(folder: Path, shape: EagleShape) -> tuple[Tensor, float]:
    """Inverse frequencies [head size / 2] and the factor of cosine and sine, as transformers reads them."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    sizes: dict[str, Any] = {
        "hidden_size": shape.hidden,
        "num_attention_heads": shape.heads,
        "head_dim": shape.head_size,
        "max_position_embeddings": shape.positions,
    }
    try:
        config = LlamaConfig(**sizes, **shape.rotary)
        stated: Any = config.rope_parameters
        kind = stated["rope_type"]
        if kind not in _ROTARIES:
            raise unfit(folder, f"has rotary embeddings of the type {kind!r}, which are not supported")
        if kind != "default":
            make: Callable[[Any], tuple[Tensor, float]] = ROPE_INIT_FUNCTIONS[kind]
            return make(config)
        steps = torch.arange(0, shape.head_size, 2).float() / shape.head_size
        return stated["rope_theta"] ** -steps, 1.0
    except (KeyError, TypeError, ValueError) as error:
        raise unfit(
            folder,
            f"has a config.json with rotary settings that cannot be read ({first_line(error)}): fetch it again",
        ) from None


def fill(folder: Path, head: LayeredHead, tensors: Mapping[str, Tensor], published: str, ours: str) -> None:
    """Give a network its weights.

    Args:
        folder: where they are from.
        head: without weights.
        tensors: by published names.
        published: a beginning of these.
        ours: what the network's names have instead.

    Raises:
        EngineError: one is missing, of another shape or none of the network's.
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
        if tensor.shape != wanted[name][1]:
            raise unfit(
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
