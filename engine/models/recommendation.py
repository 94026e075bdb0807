"""Sampling settings that the authors of a model recommend."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from specchat.engine.errors import EngineError, check
from specchat.engine.models.checkpoint import read_json
from specchat.engine.sampling_settings import SAMPLING_NUMBERS, Sampling
from specchat.engine.settings import settings_of

FILE = "generation_config.json"
_WHOLE = [name for name in SAMPLING_NUMBERS if settings_of(Sampling)[name].kind == "int"]
_GGUF = {"temperature": "temp", "repetition_penalty": "penalty_repeat"}
"""Names in a GGUF header that differ, below `general.sampling` (llama.cpp)."""


class Recommendation(NamedTuple):
    """Recommended sampling settings of a model."""

    sampling: Sampling | None = None
    """The settings, a value that is not stated is the default; None if nothing valid is stated."""
    notice: str = ""
    """A sentence about invalid values, which are ignored; empty without such values."""


def recommended_sampling(folder: Path) -> Recommendation:
    """The recommendation of a model folder (`generation_config.json`).

    `do_sample` false is greedy; true without a temperature is temperature 1. A stated temperature is used without
    `do_sample` too, which many authors leave out.
    """
    if not (folder / FILE).is_file():
        return Recommendation()
    try:
        stated = read_json(folder / FILE)
    except EngineError as error:
        return Recommendation(notice=str(error))
    valid: dict[str, Any] = {"temperature": 1.0} if stated.get("do_sample") is True else {}
    invalid = []
    for name in SAMPLING_NUMBERS:
        if (value := stated.get(name)) is None:
            continue
        try:
            check(type(value) in ((int,) if name in _WHOLE else (int, float)), "not a number")
            Sampling(**{name: value})
        except (EngineError, OverflowError):
            invalid.append(f"{name} {json.dumps(value)}")
        else:
            valid[name] = value if name in _WHOLE else float(value)
    if stated.get("do_sample") is False:
        valid["temperature"] = 0.0
    notice = f"invalid sampling settings in {FILE} are ignored: {', '.join(invalid)}"
    return Recommendation(Sampling(**valid) if valid else None, notice if invalid else "")


def add_gguf_sampling(folder: Path, metadata: Mapping[str, Any]) -> None:
    """Add the recommendation in a GGUF file's metadata (`general.sampling.*`) to a model folder's."""
    stated = {name: metadata.get(f"general.sampling.{_GGUF.get(name, name)}") for name in SAMPLING_NUMBERS}
    found = {name: value for name, value in stated.items() if value is not None}
    if found:
        # The file has float32: 0.6 is 0.6000000238418579 there.
        found = {name: round(value, 6) if isinstance(value, float) else value for name, value in found.items()}
        (folder / FILE).write_text(json.dumps(read_json(folder / FILE) | found, indent=2) + "\n", encoding="utf-8")
