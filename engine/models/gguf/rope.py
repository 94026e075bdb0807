"""Parameters of rotary embeddings from the metadata of a GGUF file and its tables of factors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specchat.engine.errors import EngineError, check
from specchat.engine.models.gguf.header import GgufHeader, rounded

TABLE = "rope_freqs.weight"
LONG, _SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
_ORIGINAL_CONTEXT, _LOW, _HIGH = 8192, 1.0, 4.0
"""Scaling parameters shared by all Llama 3.1 to 3.3 models; only the factor differs."""


def rope_parameters(header: GgufHeader, *, read_table: bool = True) -> dict[str, Any]:
    """Parameters of the rotary embedding, of full attention where layers differ.

    Args:
        header: of the file.
        read_table: whether a table of factors is Llama 3's.

    Raises:
        EngineError: the file uses a scaling that the config cannot express, so long prompts would give wrong replies.
    """
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": header.setting("rope.freq_base", 10_000.0)}
    factor = header.setting("rope.scaling.factor", None) or header.setting("rope.scale_linear", None)
    kind = header.setting("rope.scaling.type", "linear" if factor else "none")  # as in llama.cpp
    if read_table and TABLE in header.tensors:
        return rope | _llama3(header, rope["rope_theta"])
    if LONG in header.tensors:
        long, short = ([rounded(value) for value in float32_table(header, name).tolist()] for name in (LONG, _SHORT))
        original = header.setting("rope.scaling.original_context_length")
        factors = {"long_factor": long, "short_factor": short, "original_max_position_embeddings": original}
        return rope | {"rope_type": "longrope"} | factors
    if kind == "linear":
        return rope | {"rope_type": "linear", "factor": factor} if factor else rope
    if kind == "yarn":
        known = {
            "factor": "factor",
            "original_context_length": "original_max_position_embeddings",
            "yarn_beta_fast": "beta_fast",
            "yarn_beta_slow": "beta_slow",
            "yarn_attn_factor": "attention_factor",
        }
        stated = {name: header.setting(f"rope.scaling.{key}", None) for key, name in known.items()}
        return rope | {"rope_type": "yarn"} | {name: value for name, value in stated.items() if value is not None}
    if kind != "none":
        raise EngineError(
            f"{header.path} scales its rope ({kind}), which conversion would lose: use the safetensors model"
        )
    return rope


def float32_table(header: GgufHeader, name: str) -> NDArray[np.float32]:
    """Numbers of a tensor that must be float32."""
    tensor = header.tensor(name)
    check(tensor.type == "F32", f"{header.path} is damaged ({name} is not float32): fetch it again")
    return np.fromfile(header.path, dtype="<f4", count=tensor.elements, offset=tensor.offset)


def _llama3(header: GgufHeader, base: float) -> dict[str, Any]:
    """Llama 3's scaling: files contain a table of factors, one per frequency, instead of the formula's parameters.

    The parameters are recovered from the table and checked against it.
    """
    table = float32_table(header, TABLE)
    factor = float(table.max())
    if not np.allclose(table, llama3_factors(base, 2 * len(table), factor), rtol=1e-3):
        raise EngineError(f"{header.path} has a table of rope factors that is not Llama 3's: use the safetensors model")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": _LOW,
        "high_freq_factor": _HIGH,
        "original_max_position_embeddings": _ORIGINAL_CONTEXT,
    }


def llama3_factors(base: float, dimensions: int, factor: float) -> NDArray[np.float64]:
    """Divisor of each of `dimensions / 2` frequencies: 1 for high ones, `factor` for low ones, interpolated between."""
    wavelengths = 2 * math.pi * base ** (np.arange(0, dimensions, 2) / dimensions)
    blend = np.clip((_ORIGINAL_CONTEXT / wavelengths - _LOW) / (_HIGH - _LOW), 0.0, 1.0)
    return 1.0 / ((1.0 - blend) / factor + blend)
