"""RoPE scaling of a GGUF file, which transformers' GGUF reader leaves out."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specchat.engine.errors import EngineError
from specchat.engine.models.gguf.header import GgufHeader

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_TABLE = "rope_freqs.weight"
_FLOAT32 = 0
_ORIGINAL_CONTEXT, _LOW, _HIGH = 8192, 1.0, 4.0
"""Scaling parameters shared by all Llama 3.1 to 3.3 models; only the factor differs."""
_READ_BY_TRANSFORMERS = ("gpt-oss", "gpt_oss")


def rope_parameters(header: GgufHeader, config: PreTrainedConfig) -> dict[str, Any] | None:
    """rope_parameters for the config, or None if transformers reads them correctly.

    Llama 3 files hold a table of factors, one per frequency, instead of the formula's parameters. The parameters are
    recovered from the table, and the table is checked against them.

    Raises:
        EngineError: the file uses a scaling that the config cannot express, so long prompts would silently go wrong.
    """
    kind = header.metadata.get(f"{header.architecture}.rope.scaling.type", "none")
    if header.architecture in _READ_BY_TRANSFORMERS:
        return None
    if _TABLE in header.tensors:
        table = _read_table(header)
        factor = float(table.max())
        base = float(config.rope_parameters["rope_theta"])
        if not np.allclose(table, llama3_factors(base, 2 * len(table), factor), rtol=1e-3):
            raise EngineError(
                f"{header.path} has a table of rope factors that is not Llama 3's: use the safetensors model"
            )
        return {
            "rope_type": "llama3",
            "rope_theta": base,
            "factor": factor,
            "low_freq_factor": _LOW,
            "high_freq_factor": _HIGH,
            "original_max_position_embeddings": _ORIGINAL_CONTEXT,
        }
    if kind != "none":
        raise EngineError(
            f"{header.path} scales its rope ({kind}), which conversion would lose: use the safetensors model"
        )
    return None


def llama3_factors(base: float, dimensions: int, factor: float) -> NDArray[np.float64]:
    """Divisor of each of `dimensions / 2` frequencies: 1 for fast ones, `factor` for slow ones, blended between."""
    wavelengths = 2 * math.pi * base ** (np.arange(0, dimensions, 2) / dimensions)
    blend = np.clip((_ORIGINAL_CONTEXT / wavelengths - _LOW) / (_HIGH - _LOW), 0.0, 1.0)
    result: NDArray[np.float64] = 1.0 / ((1.0 - blend) / factor + blend)
    return result


def _read_table(header: GgufHeader) -> NDArray[np.float32]:
    tensor = header.tensors[_TABLE]
    if tensor.type != _FLOAT32:
        raise EngineError(f"{header.path} is damaged ({_TABLE} is not float32): fetch it again")
    return np.fromfile(header.path, dtype="<f4", count=tensor.elements, offset=tensor.offset)
