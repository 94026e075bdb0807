"""Files of a published head: config.json and its tensors, from safetensors or from a pickle that can run no code."""

from __future__ import annotations

import pickle
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from specchat.engine.drafters.published.layout import MARKS
from specchat.engine.errors import EngineError, first_line
from specchat.engine.models.checkpoint import read_json

WEIGHTS = (
    "model.safetensors",
    "medusa_lm_head.safetensors",
    "pytorch_model.bin",
    "medusa_lm_head.pt",
)
"""File names of weights in order of preference."""
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json")


def is_published(folder: Path) -> bool:
    """Whether a folder holds a published head: by its configuration, or since it is no complete model."""
    if not (folder / "config.json").is_file() or not weights_of(folder):
        return False
    return holds_head(read_json(folder / "config.json"), [file.name for file in folder.iterdir()])


def holds_head(config: dict[str, Any], files: Collection[str]) -> bool:
    """Whether a folder with this config.json and these files is a head; EAGLE-1 is known by its missing tokenizer."""
    named = any("Eagle" in str(each) for each in config.get("architectures") or ())
    return named or any(mark in config for mark in MARKS) or not any(name in files for name in _TOKENIZERS)


def weights_of(folder: Path) -> Path | None:
    """The file with the weights."""
    return next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of a head by name.

    Raises:
        EngineError: there are none, or the file is damaged, or holds more than tensors.
    """
    file = weights_of(folder)
    if file is None:
        raise EngineError(f"the draft head {folder} has no weights ({' or '.join(WEIGHTS)}): fetch it again")
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
