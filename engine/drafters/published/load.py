"""Loading of a published head for a target: sizes, tensors and vocabulary are checked before anything is drafted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from specchat.engine.drafters.head.eagle import EagleHead, EagleLayout
from specchat.engine.drafters.head.folder import LoadedHead
from specchat.engine.drafters.head.layers import Head
from specchat.engine.drafters.head.weights import pack_head
from specchat.engine.drafters.published.files import read_tensors
from specchat.engine.drafters.published.layout import FINGERPRINT, MEDUSA, TARGET, layout_of
from specchat.engine.errors import EngineError, first_line
from specchat.engine.models.checkpoint import read_json
from specchat.engine.models.load import LoadedModel, display_name
from specchat.engine.models.packed.load import PackedModel

TO_TARGET, _FROM_TARGET = "d2t", "t2d"
"""Names of the vocabulary maps."""
_IGNORED = ("verifier_lm_head.weight", "verifier_norm.weight")
"""Of the target, for training."""
_ROTARIES = ("default", "linear", "llama3", "yarn")
"""Rotary embeddings that do not depend on the length of the text."""


def load_published(folder: Path, target: LoadedModel | PackedModel) -> LoadedHead:
    """Load a published head for a target.

    Raises:
        EngineError: it does not fit the target, is of an unknown kind, or lacks something.
    """
    head, vocabulary = read_published(folder, target)
    size = pack_head(head, target.device, target.dtype, "q8" if isinstance(target, PackedModel) else None)
    return LoadedHead(head, vocabulary.to(target.device), display_name(folder), size)


def read_published(folder: Path, target: LoadedModel | PackedModel) -> tuple[Head, Tensor]:
    """A published head as it is stored: its network on the CPU, and its vocabulary [V'], int64.

    Raises:
        EngineError: it does not fit the target, is of an unknown kind, or lacks something.
    """
    tensors = {name: tensor for name, tensor in read_tensors(folder).items() if name not in _IGNORED}
    config = read_json(folder / "config.json")
    _check_training(folder, config, target)
    head: nn.Module
    if MEDUSA in config:
        medusa = import_module("specchat.engine.research.medusa")
        head, vocabulary, parts = medusa.network_of(folder, config, tensors, target)
    else:
        layout = layout_of(folder, config, tensors)
        _check_target(folder, layout, target)
        vocabulary = read_vocabulary(folder, layout.draft_vocabulary, layout.vocabulary, tensors)
        head, parts = _eagle(folder, layout, target, embeds="embed_tokens.weight" in tensors), _parts(layout)
    _fill(folder, head, tensors, parts)
    return cast(Head, head), vocabulary


def _eagle(folder: Path, layout: EagleLayout, target: LoadedModel | PackedModel, *, embeds: bool) -> EagleHead:
    taps, rotary = _taps(folder, layout, target.layers), _rotary(folder, layout)
    with torch.device("meta"):
        return EagleHead(layout, taps, rotary, embeds=embeds, scores=layout.third)


def _parts(layout: EagleLayout) -> dict[str, str]:
    """Beginnings of published names, and what the network calls these parts; the first that fits counts."""
    return {
        "fc.": "front.fc.",
        "fc_norm.": "front.fc_norm.",
        "input_norm.": "front.input_norm.",
        f"{layout.prefix}hidden_norm.": "front.hidden_norm.",
        f"{layout.prefix}input_layernorm.": "front.input_layernorm.",
        layout.prefix: "layer.",
    }


def _check_training(folder: Path, config: Mapping[str, Any], target: LoadedModel | PackedModel) -> None:
    """Refuse a head that says which weights it was made for, where the target has others."""
    if config.get(FINGERPRINT, target.fingerprint) != target.fingerprint:
        raise EngineError(
            f"the draft head {folder} was made for {config.get(TARGET, 'another target')}, with other weights than "
            f"{target.name} has: choose the head of this target"
        )


def _check_target(folder: Path, layout: EagleLayout, target: LoadedModel | PackedModel) -> None:
    """Refuse a head that was made for a target of other sizes."""
    hidden = hidden_size(target)
    if layout.target_hidden != hidden:
        raise EngineError(
            f"the draft head {folder} was made for a target of hidden size {layout.target_hidden}, and {target.name} "
            f"has {hidden}: choose the head of this target"
        )
    if layout.vocabulary != target.vocab_size:
        raise EngineError(
            f"the draft head {folder} was made for a vocabulary of {layout.vocabulary} tokens, and {target.name} has "
            f"{target.vocab_size}: choose the head of this target"
        )


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
            raise EngineError(f"the draft head {folder} lacks the tensor {TO_TARGET}: fetch it again")
        return torch.arange(count)
    if shift.shape != (count,) or shift.is_floating_point():
        raise EngineError(
            f"the draft head {folder} has a vocabulary map {TO_TARGET} of shape {list(shift.shape)}, which is not one "
            f"whole number for each of its {count} tokens: fetch it again"
        )
    tokens = torch.arange(count) + shift.long()
    if int(tokens.min()) < 0 or int(tokens.max()) >= size:
        raise EngineError(
            f"the draft head {folder} has a vocabulary map {TO_TARGET} that points outside of the {size} "
            "tokens of its target: fetch it again"
        )
    if len(set(tokens.tolist())) != count or (known is not None and not _agrees(tokens, known, size)):
        raise EngineError(
            f"the draft head {folder} has vocabulary maps {TO_TARGET} and {_FROM_TARGET} that contradict each other: "
            "fetch it again"
        )
    return tokens


def _agrees(tokens: Tensor, known: Tensor, vocabulary: int) -> bool:
    return known.shape == (vocabulary,) and bool(known[tokens].all()) and int(known.count_nonzero()) == len(tokens)


def _taps(folder: Path, layout: EagleLayout, layers: int) -> tuple[int, ...]:
    """The depths it reads: the stated ones; else those of the authors, of EAGLE-1 the last one, normed."""
    if not layout.third:
        return (layers,)
    taps = layout.taps or (2, layers // 2, layers - 3)
    if not all(0 <= tap < layers for tap in taps):
        raise EngineError(
            f"the draft head {folder} reads the depths {', '.join(map(str, taps))} of its target, and this one has "
            f"{layers} layers: choose the head of this target"
        )
    return taps


def _rotary(folder: Path, layout: EagleLayout) -> tuple[Tensor, float]:
    """Inverse frequencies [head size / 2] and the factor of cosine and sine, as transformers reads them."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    sizes: dict[str, Any] = {
        "hidden_size": layout.hidden,
        "num_attention_heads": layout.heads,
        "head_dim": layout.head_size,
        "max_position_embeddings": layout.positions,
    }
    try:
        config = LlamaConfig(**sizes, **layout.rotary)
        stated: Any = config.rope_parameters
        kind = stated["rope_type"]
        if kind not in _ROTARIES:
            raise EngineError(
                f"the draft head {folder} has rotary embeddings of the type {kind!r}, which are not supported"
            )
        if kind != "default":
            make: Callable[[Any], tuple[Tensor, float]] = ROPE_INIT_FUNCTIONS[kind]
            return make(config)
        steps = torch.arange(0, layout.head_size, 2).float() / layout.head_size
        return stated["rope_theta"] ** -steps, 1.0
    except (KeyError, TypeError, ValueError) as error:
        raise EngineError(
            f"the draft head {folder} has a config.json with rotary settings that cannot be read "
            f"({first_line(error)}): fetch it again"
        ) from None


def _fill(folder: Path, head: nn.Module, tensors: Mapping[str, Tensor], parts: Mapping[str, str]) -> None:
    """Give a network its weights.

    Args:
        folder: where they are from.
        head: without weights.
        tensors: by published names.
        parts: from the beginnings of these to those of the network's names.

    Raises:
        EngineError: one is missing, of another shape or none of the network's.
    """
    published = {ours: theirs for theirs, ours in parts.items()}
    wanted = {_renamed(name, published): (name, tensor.shape) for name, tensor in head.state_dict().items()}
    missing, unknown = sorted(wanted.keys() - tensors.keys()), sorted(tensors.keys() - wanted.keys())
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise EngineError(f"the draft head {folder} lacks the tensor {missing[0]}{more}: fetch it again")
    if unknown:
        raise EngineError(
            f"the draft head {folder} has a tensor {unknown[0]} that no head of its kind has: choose another"
        )
    for name, tensor in tensors.items():
        if tensor.shape != wanted[name][1]:
            raise EngineError(
                f"the draft head {folder} has a tensor {name} of shape {list(tensor.shape)}, and its config.json and "
                f"this target ask for {list(wanted[name][1])}: choose the head of this target"
            )
    head.load_state_dict({wanted[name][0]: tensor for name, tensor in tensors.items()}, assign=True)


def _renamed(name: str, parts: Mapping[str, str]) -> str:
    """A name with its beginning replaced."""
    found = next((part for part in parts if name.startswith(part)), None)
    return name if found is None else parts[found] + name.removeprefix(found)


def hidden_size(target: LoadedModel | PackedModel) -> int:
    """The target's hidden size."""
    if isinstance(target, PackedModel):
        return target.shape.hidden
    return int(target.model.config.get_text_config().hidden_size)
