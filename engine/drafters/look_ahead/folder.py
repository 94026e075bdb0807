"""Look-ahead embeddings on disk: `look-ahead.safetensors` with the embeddings, `look-ahead.json` with the rest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from specchat.engine.errors import EngineError, first_line
from specchat.engine.files import make_folder, replacing
from specchat.engine.models.disk import disk_errors
from specchat.engine.models.load import LoadedModel
from specchat.engine.models.packed.load import PackedModel

CARD, WEIGHTS, _NAME = "look-ahead.json", "look-ahead.safetensors", "embeddings"
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class LookAhead:
    """Trained embeddings of one target."""

    embeddings: Tensor
    """[n, d], float32: the first stands for the next token, and so on."""
    name: str
    """For display."""


def is_look_ahead(folder: Path) -> bool:
    """Whether a folder holds look-ahead embeddings."""
    return (folder / CARD).is_file()


def save_look_ahead(folder: Path, embeddings: Tensor, target: str, fingerprint: str, about: Mapping[str, Any]) -> None:
    """Write look-ahead embeddings; the card comes last, so that a folder with a card is complete.

    Args:
        folder: made if it is not there.
        embeddings: [n, d].
        target: display name of the target.
        fingerprint: of the target (`engine.models.fingerprint`).
        about: what else to say about them.

    Raises:
        EngineError: the disk is full, or not to be written.
    """
    card = {"format": _FORMAT, "target": target, "fingerprint": fingerprint, **about}
    with disk_errors(folder, "saving the look-ahead embeddings"):
        make_folder(folder)
        with replacing(folder / WEIGHTS) as part:
            save_file({_NAME: embeddings.detach().float().contiguous().cpu()}, part)
        with replacing(folder / CARD) as part:
            part.write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")


def load_look_ahead(folder: Path, target: LoadedModel | PackedModel) -> LookAhead:
    """Load look-ahead embeddings for a target.

    Raises:
        EngineError: they were made for another target, or the folder is broken.
    """
    try:
        card = json.loads((folder / CARD).read_text(encoding="utf-8"))
        theirs, name, version = card["fingerprint"], str(card["target"]), card["format"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise EngineError(
            f"{folder / CARD} cannot be read ({error}): make the look-ahead embeddings again with specchat distill"
        ) from None
    if version != _FORMAT:
        raise EngineError(f"{folder} holds look-ahead embeddings of a newer specchat: update specchat")
    if theirs != target.fingerprint:
        raise EngineError(
            f"the look-ahead embeddings {folder} were made for {name}, with other weights than {target.name} has: make "
            "some for this target with specchat distill --kind pass"
        )
    try:
        embeddings = load_file(folder / WEIGHTS)[_NAME]
        if embeddings.ndim != 2 or not len(embeddings) or embeddings.shape[1] != _hidden(target):
            raise ValueError(f"a shape of {list(embeddings.shape)} is none of this target's")
        if not bool(embeddings.isfinite().all()):
            raise ValueError("some of its numbers are none")
    except (OSError, SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise EngineError(
            f"{folder / WEIGHTS} is broken ({first_line(error)}): make the look-ahead embeddings again with specchat "
            "distill --kind pass"
        ) from None
    return LookAhead(embeddings.float(), f"look-ahead for {name}")


def _hidden(target: LoadedModel | PackedModel) -> int:
    """d, of the target."""
    if isinstance(target, PackedModel):
        return target.shape.hidden
    return int(target.model.config.get_text_config().hidden_size)
