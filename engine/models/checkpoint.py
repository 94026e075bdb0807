"""Config and safetensors headers of a model folder, checked before anything is loaded. Needs no torch."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specchat.engine.errors import EngineError, first_line

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checked model folder: config, weights and tokenizer are present, weight files have their stated size."""

    folder: Path
    config: dict[str, Any]
    """Content of config.json."""
    parameters: int
    """Numbers in the weight files."""
    dtypes: frozenset[str]
    """Their dtypes, by safetensors' names (BF16, F32 …)."""

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
        for shard in weight_files(folder):
            count, kinds = _read_header(shard)
            parameters += count
            dtypes |= kinds
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
    """Read a JSON object from one of a model's files.

    Raises:
        EngineError: the file cannot be read, or holds no JSON object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise EngineError(f"{path} cannot be read ({error}): fetch the model again") from error
    if not isinstance(content, dict):
        raise EngineError(f"{path} holds no JSON object: fetch the model again")
    return content


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model folder, all of them there.

    Raises:
        EngineError: one is missing, or there are none.
    """
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


def _read_header(file: Path) -> tuple[int, set[str]]:
    """Numbers in a safetensors file and their dtypes, from its header (checked against the file's size)."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy") as opened:
            tensors = [opened.get_slice(name) for name in opened.keys()]  # noqa: SIM118 the file is no mapping
            return sum(math.prod(tensor.get_shape()) for tensor in tensors), {tensor.get_dtype() for tensor in tensors}
    except (SafetensorError, OSError) as error:
        reason = first_line(error).removeprefix("Error while deserializing header: ")
        raise EngineError(f"{file} is damaged or cut short ({reason}): fetch the model again") from error
