"""A model folder as it lies on disk: its config and its safetensors files, checked without loading anything.

Needs no torch. Whatever is wrong with the files is found here, before a library meets it.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import EngineError

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json")
_MAX_HEADER = 100_000_000
"""Bytes; the safetensors format's own limit."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder that holds a model: config, weights, tokenizer, all there and of the right length."""

    folder: Path
    config: dict[str, Any]
    """config.json as it stands."""
    parameters: int
    """Numbers in the weight files."""
    dtypes: frozenset[str]
    """Their types, in safetensors' names (BF16, F32 …)."""

    @classmethod
    def open(cls, folder: Path) -> Checkpoint:
        """Read config.json and the headers of the weight files.

        Raises:
            EngineError: the folder is missing or is not a model, or one of its files is broken.
        """
        if not folder.is_dir():
            raise EngineError(f"there is no folder {folder}: give a folder that holds a model's config.json")
        config = _read_config(folder)
        parameters, dtypes = 0, set[str]()
        for shard in _weight_files(folder):
            for tensor in _read_header(shard).values():
                parameters += math.prod(tensor["shape"])
                dtypes.add(tensor["dtype"])
        if not any((folder / name).is_file() for name in _TOKENIZERS):
            raise EngineError(
                f"{folder} has no tokenizer (tokenizer.json): copy the tokenizer files of the model there"
            )
        return cls(folder, config, parameters, frozenset(dtypes))


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        if (folder / "adapter_config.json").is_file():
            raise EngineError(f"{folder} holds an adapter, not a model: merge it into its base model first")
        ggufs = sorted(folder.glob("*.gguf"))
        hint = f"; to use its GGUF file, give {ggufs[0]}" if ggufs else ""
        raise EngineError(f"{folder} is not a model: it has no config.json{hint}")
    return read_json(path)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of a model.

    Raises:
        EngineError: the file cannot be read, or holds no JSON object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EngineError(f"{path} cannot be read ({error}): fetch the model again") from error
    if not isinstance(content, dict):
        raise EngineError(f"{path} holds no JSON object: fetch the model again")
    return content


def _weight_files(folder: Path) -> list[Path]:
    if (folder / _SINGLE).is_file():  # transformers, too, looks for it first
        return [folder / _SINGLE]
    if (folder / _INDEX).is_file():
        weight_map = read_json(folder / _INDEX).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise EngineError(f"{folder / _INDEX} names no weights, so the model is not complete: fetch it again")
        names = sorted(set(map(str, weight_map.values())))
        lacking = [name for name in names if not (folder / name).is_file()]
        if lacking:
            raise EngineError(f"{folder} lacks {lacking[0]}, so the model is not complete: fetch it again")
        return [folder / name for name in names]
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt")) or any(folder.glob("*.pth")):
        raise EngineError(
            f"{folder} has pickled weights only, which can run code when they are loaded: "
            "convert them to safetensors, or choose a model that has them"
        )
    raise EngineError(f"{folder} has no weights ({_SINGLE}): fetch the model again")


def _read_header(file: Path) -> dict[str, dict[str, Any]]:
    """Tensor name to its dtype, shape and data_offsets, after checking that the file is as long as it says."""
    size = file.stat().st_size
    with file.open("rb") as opened:
        start = opened.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        raw = opened.read(length) if 2 <= length <= min(size, _MAX_HEADER) else b""
    try:
        header = json.loads(raw)
        header.pop("__metadata__", None)
        end = max((tensor["data_offsets"][1] for tensor in header.values()), default=0)
        for tensor in header.values():
            math.prod(tensor["shape"])
            tensor["dtype"].upper()
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise EngineError(f"{file} is damaged (its header cannot be read): fetch the model again") from error
    if 8 + length + end != size:
        raise EngineError(
            f"{file} is {'cut short' if size < 8 + length + end else 'damaged'}: it has {size} bytes where its header "
            f"asks for {8 + length + end}; fetch the model again"
        )
    return dict(header)
