"""A block drafter as it is published: its folder or GGUF file, read and checked against its target."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specchat.engine.drafters.block.gguf import read_gguf
from specchat.engine.drafters.block.network import BlockNetwork
from specchat.engine.drafters.block.shape import BlockShape, read_shape
from specchat.engine.drafters.head.layer import pack_head
from specchat.engine.drafters.published.find import CONFIG, GGUF, NESTED
from specchat.engine.drafters.published.load import FINGERPRINT, TARGET
from specchat.engine.drafters.published.weights import (
    UnfitError,
    fill,
    hidden_size,
    read_tensors,
    read_vocabulary,
    require,
    without_nulls,
)
from specchat.engine.errors import errors_as
from specchat.engine.models.checkpoint import display_name, read_json
from specchat.engine.models.packed.load import Model, PackedModel
from specchat.engine.models.packed.quantize import quantize_network

_EMBEDDING, _OUTPUT = "embed_tokens.weight", "lm_head.weight"
_UNUSED = re.compile(r"verifier_\w+\.weight|rotary_emb\..*")
"""Tensors for training, or computed."""
_MASK_FILE = "mask_embedding.pt"
_COMPARED, _GAP = 64, 0.5
"""Rows that are compared with the target's, and by how much of its length one may differ: codes of 2 bits do by 0.3."""
_OTHER_NAMES = {
    "model.": "", "logit_head.": "", "midlayer.": "layers.0.", "encoder.output_norm_enc.": "hidden_norm.",
    "encoder.fc.": "fc.",
}  # fmt: skip
"""Beginnings of names in some checkpoints, and the usual ones."""
_TURNED = re.compile(r"layers\.\d+\.self_attn\.[qk]_(proj|norm)\.(weight|bias)")
"""Tensors whose rows rotary embeddings pair."""


@dataclass(frozen=True, slots=True)
class LoadedBlock:
    """A block drafter on its target's device, in its dtype; next to packed weights, with 4-bit codes in its layers and
    8-bit ones in its heads."""

    network: BlockNetwork
    vocabulary: Tensor
    """[V'], int64, the tokens that it scores."""
    name: str
    """For display."""
    weight_bytes: int

    @property
    def taps(self) -> tuple[int, ...]:
        """Depths of the target's hidden states that it reads."""
        return self.network.taps


def load_block(folder: Path, target: Model) -> LoadedBlock:
    """Load a block drafter for a target.

    Args:
        folder: of config.json and safetensors, or a GGUF file.
        target: whose hidden states it reads.

    Raises:
        EngineError: it does not fit the target, is of an unknown kind, or lacks something.
    """
    network, vocabulary = read_block(folder, target)
    if isinstance(target, PackedModel):
        for head in network.scoring_heads:  # small, and they change logits directly
            quantize_network(head)
    size = pack_head(network, target, "q4")
    return LoadedBlock(network, vocabulary.to(target.device), display_name(folder), size)


def read_block(folder: Path, target: Model) -> tuple[BlockNetwork, Tensor]:
    """A block drafter as it is stored: its network on the CPU, and its vocabulary [V'], int64.

    Raises:
        EngineError: it does not fit the target, is of an unknown kind, or lacks something.
    """
    with errors_as(lambda error: f"the block drafter {folder} {error}", UnfitError):
        if folder.suffix == GGUF:
            config, tensors = read_gguf(folder, target.vocab_size)
        else:
            config, tensors = _completed(without_nulls(read_json(folder / CONFIG)), target), read_tensors(folder)
        tensors = {_usual(name): tensor for name, tensor in tensors.items()}
        tensors = {name: tensor for name, tensor in tensors.items() if not _UNUSED.fullmatch(name)}
        own = {name: tensors.pop(name) for name in (_EMBEDDING, _OUTPUT) if name in tensors}
        shape = read_shape(config, tensors)
        require(
            config.get(FINGERPRINT, target.fingerprint) == target.fingerprint,
            f"was made for {config.get(TARGET, 'another target')}, with other weights than {target.name} has: choose "
            "the drafter of this target",
        )
        _check(shape, config, target)
        require(not (folder / _MASK_FILE).exists(), "has an own embedding of its mask token, which is not supported")
        if folder.suffix != GGUF or config[NESTED]["input_embedding_scale"] is None:  # llama.cpp's is the whole factor
            shape = replace(shape, embedding_scale=shape.embedding_scale * embedding_scale(target))
        shape, tensors = _rotated(shape, config, tensors)
        vocabulary = read_vocabulary(shape.draft_vocabulary, shape.vocabulary, tensors)
        for name, table in own.items():
            _check_table(name, table, vocabulary, shape.mask, target)
        with torch.device("meta"):
            network = BlockNetwork(shape)
        fill(network, tensors, "", "")
    return network, vocabulary


def _completed(config: dict[str, Any], target: Model) -> dict[str, Any]:
    """A config.json with what that of Muse Glimmer's assistant, a DFlash drafter, leaves to its target and its code."""
    if config.get("model_type") != "muse_glimmer_assistant" or isinstance(target, PackedModel):
        return config
    text = target.model.config.get_text_config()
    scaled = {name: getattr(text, name, None) for name in ("output_multiplier", "final_logit_softcapping")}
    window = config.get("sliding_window")
    sliding = {"sliding_window": window + 1} if isinstance(window, int) else {}  # a token at that distance is seen too
    return config | {"vocab_size": target.vocab_size, "is_causal": False} | scaled | sliding


def _usual(name: str) -> str:
    """The name of a tensor in the network."""
    beginning = next((each for each in _OTHER_NAMES if name.startswith(each)), "")
    own = _OTHER_NAMES.get(beginning, "") + name.removeprefix(beginning)
    return f"{own}.weight" if own.endswith("_codebook") else own


def _check(shape: BlockShape, config: Mapping[str, Any], target: Model) -> None:
    """Check that the drafter was made for a target of these sizes.

    Raises:
        UnfitError: it was made for another one.
    """
    hidden, layers = hidden_size(target), target.layers
    stated = int(config.get("target_hidden_size") or shape.hidden)
    fitting = "choose the drafter of this target"
    for size in (stated, shape.hidden):
        require(
            size == hidden, f"was made for a target of hidden size {size}, and {target.name} has {hidden}: {fitting}"
        )
    require(
        shape.vocabulary == target.vocab_size,
        f"was made for a vocabulary of {shape.vocabulary} tokens, and {target.name} has {target.vocab_size}: {fitting}",
    )
    require(
        0 <= shape.mask < target.vocab_size,
        f"has the mask token {shape.mask}, which is none of the {target.vocab_size} of {target.name}: {fitting}",
    )
    require(
        all(0 <= depth <= layers for depth in shape.taps),
        f"reads the outputs of the layers {', '.join(str(depth - 1) for depth in shape.taps)} of its target, and "
        f"{target.name} has {layers} layers: {fitting}",
    )


def _check_table(name: str, table: Tensor, vocabulary: Tensor, mask: int, target: Model) -> None:
    """Check that a drafter's embedding or output layer is its target's, which is used.

    Raises:
        UnfitError: it is another.
    """
    rows = torch.arange(0, len(table), max(len(table) // _COMPARED, 1))
    tokens = vocabulary[rows] if len(table) == len(vocabulary) else rows
    if name == _EMBEDDING:
        tokens = rows = torch.cat([rows, torch.tensor([mask])])
    if len(table) in (len(vocabulary), target.vocab_size) and table.shape[1] == hidden_size(target):
        expected = _rows(target, tokens, output=name == _OUTPUT)
        gap, size = (table[rows].float() - expected).norm(dim=1), expected.norm(dim=1)
        if bool((gap <= _GAP * size.clamp(min=float(size.mean()) / 4)).all()):  # codes of hardly any length may be 0
            return
    raise UnfitError(f"has a tensor {name} other than that of its target: choose the drafter of this target")


def _rows(target: Model, tokens: Tensor, *, output: bool) -> Tensor:
    """Rows of the target's embedding or output layer, float32, on the CPU."""
    if isinstance(target, PackedModel):
        return torch.from_numpy((target.output if output else target.embedding).rows_of(tokens.numpy()))
    network: Any = target.model
    table: Any = network.get_output_embeddings() if output else network.get_input_embeddings()
    rows: Tensor = table.weight[tokens.to(target.device)].float().cpu()
    return rows


def embedding_scale(target: Model) -> float:
    """The factor by which the target's embedding module multiplies what it stores, as Gemma's does."""
    if isinstance(target, PackedModel):
        return target.shape.embedding_scale
    return float(getattr(target.model.get_input_embeddings(), "scalar_embed_scale", 1.0))


def _rotated(
    shape: BlockShape, config: Mapping[str, Any], tensors: dict[str, Tensor]
) -> tuple[BlockShape, dict[str, Tensor]]:
    """A shape and tensors whose rotary embeddings pair the halves of a head; frequencies of 0 turn nothing.

    Raises:
        UnfitError: the turned part of a head is scaled too.
    """
    size, turned = shape.head_size, 2 * len(shape.frequencies)
    scaled = turned < size and shape.rotation_factor != 1
    require(not scaled, "scales rotary embeddings of a part of each head, which is not supported: choose another")
    paired = {name: tensor for name, tensor in tensors.items() if _TURNED.fullmatch(name)}
    if not config.get("rope_is_neox_style", config.get("is_neox_style", True)):
        paired = {name: _halves(tensor, size) for name, tensor in paired.items()}
    elif turned < size:
        paired = {name: _apart(tensor, size, turned) for name, tensor in paired.items()}
    return replace(shape, frequencies=shape.frequencies + (0.0,) * ((size - turned) // 2)), tensors | paired


def _apart(rows: Tensor, size: int, turned: int) -> Tensor:
    """Rows [heads x size, …] of rotary embeddings that pair the halves of the first `turned` dimensions of a head, in
    the order in which the halves of the whole head are paired: the products of queries and keys stay the same."""
    half, middle = turned // 2, (turned + size) // 2
    first, second, *still = (range(half), range(half, turned), range(turned, middle), range(middle, size))
    order = [*first, *still[0], *second, *still[1]]
    return rows.view(-1, size, *rows.shape[1:])[:, order].reshape(rows.shape)


def _halves(rows: Tensor, size: int) -> Tensor:
    """Rows [heads x size, …] of interleaved rotary embeddings, which pair neighbours, in the order in which they pair
    the halves of a head: the products of queries and keys stay the same."""
    return rows.view(-1, size // 2, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)
