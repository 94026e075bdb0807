"""Training text on disk: sequences with the target's hidden states, in shards that are complete or not there."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.disk import disk_errors


@dataclass(frozen=True, slots=True)
class Conversation:
    """One conversation as the target has seen it."""

    tokens: Tensor
    """[T], int32."""
    sampled: Tensor
    """[T], bool: whether the target chose the token; the others were given (template, prompts)."""
    features: Tensor
    """[T, taps x hidden size]: the tapped hidden states of each token."""
    log_total: Tensor
    """[T], float32: log-sum-exp of the target's logits behind each token, over the whole vocabulary."""


class Corpus:
    """The shards of one folder, numbered in the order they were made.

    Args:
        folder: made when the first shard is written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def shards(self) -> list[Path]:
        """Complete shards, oldest first."""
        return sorted(self.folder.glob("text-*.safetensors"))

    @property
    def tokens(self) -> int:
        """Tokens in all shards."""
        total = 0
        for shard in self.shards:
            with safe_open(shard, framework="pt") as opened:
                total += int(opened.get_tensor("lengths").sum())
        return total

    def talks(self) -> Iterator[Conversation]:
        """Every conversation, oldest first, one shard in memory at a time."""
        for shard in self.shards:
            yield from self.read(shard)

    def add(self, sequences: Sequence[Conversation]) -> None:
        """Write one more shard; a kill in between leaves none.

        Raises:
            EngineError: the disk is full, or not to be written.
        """
        path = self.folder / f"text-{len(self.shards):05d}.safetensors"
        part = path.with_suffix(".part")
        tensors = {
            "tokens": torch.cat([s.tokens for s in sequences]),
            "sampled": torch.cat([s.sampled for s in sequences]),
            "features": torch.cat([s.features for s in sequences]),
            "log_total": torch.cat([s.log_total for s in sequences]),
            "lengths": torch.tensor([len(s.tokens) for s in sequences]),
        }
        with disk_errors(self.folder, "writing training text"):
            self.folder.mkdir(parents=True, exist_ok=True)
            save_file(tensors, part)
            os.replace(part, path)

    def read(self, path: Path) -> list[Conversation]:
        """The sequences of one shard."""
        tensors = load_file(path)
        lengths = tensors.pop("lengths").tolist()
        parts = {name: torch.split(tensor, lengths) for name, tensor in tensors.items()}
        return [Conversation(**{name: part[i] for name, part in parts.items()}) for i in range(len(lengths))]
