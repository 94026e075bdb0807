"""Reference scores of the target, with transformers' own cache and attention."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from specchat.engine.models.load import LoadedModel


class Scorer(Protocol):
    """What computes reference scores."""

    def scores(self, context: Sequence[int], reply: Sequence[int]) -> Tensor:
        """Logits [T, V], float32, from which each of the T tokens of the reply was chosen."""

    def distributions(self, contexts: Sequence[Sequence[int]], temperature: float) -> Tensor:
        """Next-token probabilities [B, V], float64, on the host, of B contexts of one length."""


class Reference:
    """The target, run without any of the engine's code.

    Args:
        loaded: a model that the engine does not use, because the engine changes the attention of its own.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self._network: Any = loaded.model
        # Most networks can compute logits of the last positions only, which saves time for a large V.
        self._can_keep = "logits_to_keep" in inspect.signature(self._network.forward).parameters

    @torch.inference_mode()
    def scores(self, context: Sequence[int], reply: Sequence[int]) -> Tensor:
        """Logits [T, V], float32, from which each of the T tokens of the reply was chosen."""
        ids = torch.tensor([[*context, *reply[:-1]]], device=self._network.device)
        return self._last(ids, len(reply))[0].float()

    @torch.inference_mode()
    def distributions(self, contexts: Sequence[Sequence[int]], temperature: float) -> Tensor:
        """Next-token probabilities [B, V], float64, on the host, of B contexts of one length."""
        ids = torch.tensor([list(context) for context in contexts], device=self._network.device)
        return (self._last(ids, 1)[:, 0].double() / temperature).softmax(-1).cpu()

    def _last(self, ids: Tensor, count: int) -> Tensor:
        """Logits [B, count, V] at the last `count` tokens of each row."""
        keep = {"logits_to_keep": count} if self._can_keep else {}
        logits: Tensor = self._network(input_ids=ids, use_cache=False, **keep).logits
        return logits[:, -count:]
