"""Folders of random weights in a model's shape: the engine against transformers, plain and assisted, in one run, and
with 4-bit codes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_day.bench import ON_GPU, bench, cells, rounded
from benchmarks.gpu_day.section import Row
from specchat.engine.tools.bench.synthetic import SHAPES
from tests.engine.tiny import tiny_tokenizer

PAIR = ("llama-3.2-3b", "llama-3.2-1b") if ON_GPU else ("tiny", "tiny")


def rows() -> Iterator[Row]:
    """Speeds of the engine, and its speedup over each peer; speeds of a quantised target."""
    with tempfile.TemporaryDirectory() as name:
        target, draft = (_written(Path(name) / part, shape) for part, shape in zip(("t", "d"), PAIR, strict=True))
        report = bench(
            models=name,
            target=target,
            draft=draft,
            quantize="none",
            peers=["transformers"],
            drafters=["model"],
            gammas=["4"],
            prompts=["chat"],
            limit=2,
            passes=1,
            max_tokens=32 if ON_GPU else 12,
        )
        for what, cell in cells(report):
            yield {"what": what, **rounded(cell, "tokens_per_second", "measured_speedup")}
        for peer in report["peers"]:
            yield {
                "what": f"{peer['name']} γ {peer['gamma']}",
                **rounded(peer, "tokens_per_second"),
                **peer["variants"],
            }
        for batch in (1, 8) if ON_GPU else (1,):
            sizes = {"batches": [batch], "limit": batch, "max_tokens": 64 if ON_GPU else 12, "passes": 2}
            report = bench(models=name, target=target, quantize="q4", drafters=["none"], prompts=["chat"], **sizes)
            for what, cell in cells(report):
                yield {"what": f"{what}, 4-bit codes", **rounded(cell, "tokens_per_second", "verify_ms", "roofline")}


def _written(folder: Path, shape: str) -> Path:
    """A folder with random weights; draft and target agree seldom, so that the assisted peer shows its overhead."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    auto: Any = AutoModelForCausalLM
    config = LlamaConfig(**{**SHAPES[shape], "vocab_size": max(SHAPES[shape]["vocab_size"], 512)})
    device = "cuda" if ON_GPU else "cpu"
    with torch.device(device):
        network = auto.from_config(config, dtype=torch.bfloat16)
    network.generation_config.pad_token_id = 0
    network.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder
