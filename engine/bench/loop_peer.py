"""Plain decoding with no speculation code in it: feed a token, take the likeliest, feed it. What γ = 0 has to match."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from engine.bench.pace import Pace
from engine.bench.prompts import Prompt
from engine.cached_model import CachedModel
from engine.loading import LoadedModel
from engine.request import Request
from engine.text import encode


class LoopPeer:
    """The bare loop on the engine's own network, with a cache of its own.

    Args:
        loaded: the model.
        slots: the largest batch.
        context: tokens per row.
    """

    name = "bare loop"
    gamma = 0

    def __init__(self, loaded: LoadedModel, slots: int, context: int) -> None:
        self._loaded = loaded
        self._slots = slots
        self._target = CachedModel(loaded.model, slots, context, 1)

    def refusal(self, batch: int) -> str | None:
        """It has only as many slots as it was given."""
        return f"the bare loop has {self._slots} slots" if batch > self._slots else None

    def run(self, prompts: Sequence[Prompt], batch: int, temperature: float, max_tokens: int) -> Pace:  # noqa: ARG002
        """Decode greedily, whatever the temperature, each batch until its first reply ends."""
        waves = [prompts[i : i + batch] for i in range(0, len(prompts), batch)]
        paces = [self._wave(wave, max_tokens) for wave in waves]
        return Pace(sum(pace.tokens for pace in paces), sum(pace.seconds for pace in paces))

    @torch.inference_mode()
    def _wave(self, prompts: Sequence[Prompt], max_tokens: int) -> Pace:
        encoded = [
            encode(Request("peer", messages=prompt.messages, prompt_ids=prompt.ids), self._loaded.tokenizer)
            for prompt in prompts
        ]
        device = self._target.device
        slots = list(range(len(encoded)))
        for slot, ids in zip(slots, encoded, strict=True):
            self._target.prefill(torch.tensor([ids[:-1]], device=device), [slot], [0])
        lengths = [len(ids) - 1 for ids in encoded]
        tokens = torch.tensor([[ids[-1]] for ids in encoded], device=device)
        started, count = 0.0, 0
        for step in range(max_tokens):
            tokens = self._target.forward(tokens, slots, [length + step for length in lengths]).argmax(-1)
            ended = not self._loaded.eos_ids.isdisjoint(tokens.flatten().tolist())
            if step == 0:
                started = time.perf_counter()
            else:
                count += len(slots)
            if ended:
                break
        return Pace(count, time.perf_counter() - started)
