"""A folder of random weights in a model's shape, loaded as 4- and 8-bit codes: speeds without drafts."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_day.bench import ON_GPU, bench
from benchmarks.gpu_day.section import Row
from specchat.engine.tools.bench.synthetic import SHAPES
from tests.engine.tiny import tiny_tokenizer

SHAPE = "llama-3.2-1b" if ON_GPU else "tiny"
BATCHES = (1, 8) if ON_GPU else (1,)
_FIGURES = ("tokens_per_second", "verify_ms", "rest_ms", "roofline")


def rows() -> Iterator[Row]:
    """Speeds by format and number of rows."""
    sizes = {"batches": BATCHES, "limit": max(BATCHES), "max_tokens": 64 if ON_GPU else 12, "passes": 2}
    with tempfile.TemporaryDirectory() as name:
        target = _written(Path(name) / "model")
        for codes in ("q4", "q8"):
            report = bench(models=name, target=target, quantize=codes, drafters=["none"], prompts=["chat"], **sizes)
            for cell in report["cells"]:
                figures = {name: cell[name] for name in _FIGURES if cell[name] is not None}
                yield {"what": f"{SHAPE} in {codes}, {cell['batch']} rows", **figures}


def _written(folder: Path) -> Path:
    """The folder, with random weights."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    auto: Any = AutoModelForCausalLM
    config = LlamaConfig(**{**SHAPES[SHAPE], "vocab_size": max(SHAPES[SHAPE]["vocab_size"], 512)})
    with torch.device("cuda" if ON_GPU else "cpu"):
        network = auto.from_config(config, dtype=torch.bfloat16)
    network.generation_config.pad_token_id = 0
    network.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder
