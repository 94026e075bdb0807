"""Training text on disk: sequences with the target's hidden states, in shards written atomically."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from specchat.engine.files import make_folder, replacing
from specchat.engine.models.disk import disk_errors


@dataclass(frozen=True, slots=True)
class Conversation:
    """One conversation with the target's hidden states."""

    tokens: Tensor
    """[T], int32."""
    sampled: Tensor
    """[T], bool: whether the target sampled the token; the others were given (template, prompts)."""
    features: Tensor
    """[T, taps x hidden size]: the tapped hidden states of each token."""
    log_total: Tensor
    """[T], float32: log-sum-exp over V of the target's logits at each token."""


class Corpus:
    """Shards of one folder, numbered in the order of writing, and those of others.

    Args:
        folder: written to; created when the first shard is written.
        others: folders whose shards are read too.
    """

    def __init__(self, folder: Path, others: Sequence[Path] = ()) -> None:
        self.folder = folder
        self._others = others

    @property
    def shards(self) -> list[Path]:
        """Complete shards, oldest first, folder by folder."""
        return [shard for folder in (*self._others, self.folder) for shard in _shards(folder)]

    @property
    def tokens(self) -> int:
        """Tokens in all shards."""
        total = 0
        for shard in self.shards:
            with safe_open(shard, framework="pt") as opened:
                total += int(opened.get_tensor("lengths").sum())
        return total

    def talks(self) -> Iterator[Conversation]:
        """Yield all conversations, oldest first, with one shard in memory at a time."""
        for shard in self.shards:
            yield from self.read(shard)

    def add(self, sequences: Sequence[Conversation]) -> None:
        """Write one more shard atomically.

        Raises:
            EngineError: the disk is full or not writable.
        """
        path = self.folder / f"text-{len(_shards(self.folder)):05d}.safetensors"
        tensors = {
            "tokens": torch.cat([s.tokens for s in sequences]),
            "sampled": torch.cat([s.sampled for s in sequences]),
            "features": torch.cat([s.features for s in sequences]),
            "log_total": torch.cat([s.log_total for s in sequences]),
            "lengths": torch.tensor([len(s.tokens) for s in sequences]),
        }
        with disk_errors(self.folder, "writing training text"):
            make_folder(self.folder)
            with replacing(path) as part:
                save_file(tensors, part)

    def read(self, path: Path) -> list[Conversation]:
        """Read the sequences of one shard."""
        tensors = load_file(path)
        lengths = tensors.pop("lengths").tolist()
        parts = {name: torch.split(tensor, lengths) for name, tensor in tensors.items()}
        return [Conversation(**{name: part[i] for name, part in parts.items()}) for i in range(len(lengths))]


def _shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("text-*.safetensors"))
