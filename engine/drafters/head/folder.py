"""A draft head on disk: `head.safetensors` with the weights and the vocabulary map, `head.json` with the rest."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specchat.engine.drafters.head.layer import LayeredHead, pack_head
from specchat.engine.drafters.head.network import DraftHead, HeadShape
from specchat.engine.drafters.part_folder import PartFolder, stored_weights
from specchat.engine.errors import EngineError
from specchat.engine.models.packed.decoder_description import with_tuples
from specchat.engine.models.packed.load import Model
from specchat.engine.models.packed.quantize import METHODS

CARD, WEIGHTS = "head.json", "head.safetensors"
_FOLDER = PartFolder("draft head", CARD, WEIGHTS, version=2)
"""Heads of format 1 have no `codes`."""
_VOCABULARY = "vocabulary"


@dataclass(frozen=True, slots=True)
class HeadAcceptance:
    """Acceptance of a head on prompts that it was not trained on."""

    rate: float
    """accepted / tested."""
    by_position: tuple[float, ...]
    """Acceptance rate of the first drafted token of a round, of the second, …"""
    emitted_per_round: float
    """τ."""


@dataclass(frozen=True, slots=True)
class HeadCard:
    """Origin, sizes and measured acceptance of a head."""

    target: str
    """Display name of the target."""
    fingerprint: str
    """Fingerprint of the target (`engine.models.load.fingerprint`)."""
    shape: HeadShape
    tokens: int
    """Tokens of training text."""
    steps: int
    """Updates of the weights."""
    minutes: float
    """Time spent, text and training together."""
    gamma: int
    """Draft length of the evaluation."""
    greedy: HeadAcceptance
    sampled: HeadAcceptance
    """Acceptance at temperature 1."""
    codes: str = "q8"
    """Codes of its linear layers with a quantised target: `q4` if it was trained for that."""
    steps_before: int = 0
    """Updates of the head that the training started from; `tokens` and `minutes` include its training."""
    norms: str = ""
    """Fingerprint of the target's norms (`engine.models.load.norms_fingerprint`); empty if it is unknown."""

    def fits(self, target: Model) -> bool:
        """Whether the target is the model that the head was trained for, or has other quantised codes of it."""
        return self.fingerprint == target.fingerprint or (self.norms != "" and self.norms == target.norms)


@dataclass(frozen=True, slots=True)
class LoadedHead:
    """A head on its target's device, in its dtype."""

    head: DraftHead | LayeredHead
    vocabulary: Tensor
    """[V'], int64, the tokens it can draft."""
    name: str
    """For display."""
    weight_bytes: int
    notice: str = ""
    """Notice for the user; empty for none."""

    @property
    def taps(self) -> tuple[int, ...]:
        """Depths of the target's hidden states that it reads."""
        return self.head.taps


def save_head(folder: Path, head: DraftHead, vocabulary: Tensor, card: HeadCard) -> None:
    """Write a head, its weights in bfloat16.

    Args:
        folder: made if it is not there.
        head: the network.
        vocabulary: [V'], the tokens it can draft.
        card: what to say about it.

    Raises:
        EngineError: the disk is full, or not to be written.
    """
    tensors = {**stored_weights(head), _VOCABULARY: vocabulary.int().cpu()}
    _FOLDER.write(folder, tensors, {"format": _FOLDER.version, **asdict(card)})


def read_card(folder: Path) -> HeadCard:
    """Read the card of a head from its folder.

    Raises:
        EngineError: the folder is no head, or its card cannot be read.
    """

    def parse(shape: dict[str, Any], greedy: dict[str, Any], sampled: dict[str, Any], **others: Any) -> HeadCard:
        at_greedy, at_sampled = (HeadAcceptance(**with_tuples(each)) for each in (greedy, sampled))
        return HeadCard(shape=HeadShape(**with_tuples(shape)), greedy=at_greedy, sampled=at_sampled, **others)

    return _FOLDER.read_card(folder, parse)


def find_head(folders: Sequence[Path], target: Model) -> Path | None:
    """The head for this target among the subfolders of `folders`, else for other codes of it; not a broken one."""
    fitting = list[tuple[bool, Path]]()
    for head in (entry for folder in folders if folder.is_dir() for entry in sorted(folder.iterdir())):
        with suppress(EngineError):  # it is none, or broken
            if (card := read_card(head)).fits(target):
                fitting.append((card.fingerprint != target.fingerprint, head))
    return min(fitting, key=lambda each: each[0], default=(False, None))[1]


def load_head(folder: Path, target: Model) -> LoadedHead:
    """Load a head for a target.

    Raises:
        EngineError: it was made for another target, or the folder is broken.
    """
    card, head, vocabulary = read_head(folder, target)
    size = pack_head(head, target, card.codes)
    notice = ""
    if card.fingerprint != target.fingerprint:
        notice = (
            f"the draft head {folder} was trained for {card.target}, other weights of this model, and drafts worse "
            f"than one trained for these: make one with specchat distill --from {folder}"
        )
    return LoadedHead(head, vocabulary.to(target.device), f"head for {card.target}", size, notice)


def read_head(folder: Path, target: Model) -> tuple[HeadCard, DraftHead, Tensor]:
    """A head as it is stored: its card, its network on the CPU, and its vocabulary [V'], int64.

    Raises:
        EngineError: it was made for another target, or the folder is broken.
    """
    card = read_card(folder)
    if not card.fits(target):
        raise EngineError(
            f"the draft head {folder} was made for {card.target}, with other weights than {target.name} has: make one "
            f"for this target with specchat distill"
        )
    with _FOLDER.reading(folder) as weights:
        vocabulary = weights.pop(_VOCABULARY)
        with torch.device("meta"):
            head = DraftHead(card.shape)
        head.load_state_dict(weights, assign=True)
        _check(card, vocabulary, target)
    return card, head, vocabulary.long()


def _check(card: HeadCard, vocabulary: Tensor, target: Model) -> None:
    """Check what the shapes of the weights do not show.

    Raises:
        ValueError: a value is invalid.
    """
    depth = target.layers
    if not all(type(tap) is int and 0 <= tap <= depth for tap in card.shape.taps):
        raise ValueError(f"its taps are {card.shape.taps}, and the target has {depth} layers")
    if vocabulary.ndim != 1 or vocabulary.is_floating_point() or not len(vocabulary):
        raise ValueError("its vocabulary is not a list of tokens")
    if card.shape.clusters and len(vocabulary) % card.shape.clusters:
        raise ValueError(f"its {len(vocabulary)} tokens are not {card.shape.clusters} clusters of one size")
    if card.codes not in METHODS:
        raise ValueError(f"its codes are {card.codes!r}, and not one of {', '.join(METHODS)}")
    if int(vocabulary.min()) < 0 or int(vocabulary.max()) >= target.vocab_size:
        raise ValueError(f"its vocabulary names tokens that are none of the target's {target.vocab_size}")
