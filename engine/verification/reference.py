"""What the target itself says: its network loaded afresh, with transformers' own cache and attention."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from engine.loading import LoadedModel


class Reference:
    """The target, asked without any of the engine's code between.

    Args:
        loaded: a model of its own: the engine changes the attention of the one it runs.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self._network: Any = loaded.model
        # Most networks can leave out the scores nobody asks for; a large vocabulary makes that worth while.
        self._can_keep = "logits_to_keep" in inspect.signature(self._network.forward).parameters

    @torch.inference_mode()
    def scores(self, context: Sequence[int], reply: Sequence[int]) -> Tensor:
        """The logits [len(reply), V], float32, from which each token of the reply was chosen."""
        ids = torch.tensor([[*context, *reply[:-1]]], device=self._network.device)
        return self._last(ids, len(reply))[0].float()

    @torch.inference_mode()
    def distributions(self, contexts: Sequence[Sequence[int]], temperature: float) -> Tensor:
        """What follows each context, all of one length: probabilities [len(contexts), V], float64, on the host."""
        ids = torch.tensor([list(context) for context in contexts], device=self._network.device)
        return (self._last(ids, 1)[:, 0].double() / temperature).softmax(-1).cpu()

    def _last(self, ids: Tensor, count: int) -> Tensor:
        """The logits [B, count, V] behind the last `count` tokens of each row."""
        keep = {"logits_to_keep": count} if self._can_keep else {}
        logits: Tensor = self._network(input_ids=ids, use_cache=False, **keep).logits
        return logits[:, -count:]
