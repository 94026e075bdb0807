"""Peer "loop": greedy decoding without any speculation code, which γ = 0 has to match in speed."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from specchat.engine.tools.bench.pace import Pace
from specchat.engine.tools.bench.prompts import Prompt, encoded
from specchat.engine.worker.obtain import Model, make_runner


class LoopPeer:
    """Minimal decoding loop over the engine's own network, with a KV cache of its own.

    Args:
        loaded: the model.
        slots: largest batch size.
        context: tokens per slot.
    """

    name = "bare loop"
    gamma = 0

    def __init__(self, loaded: Model, slots: int, context: int) -> None:
        self._loaded = loaded
        self._slots = slots
        self._target = make_runner(loaded, slots, context, 1)

    def refusal(self, batch: int) -> str | None:
        """Refuses batches larger than `slots`."""
        return f"the bare loop has {self._slots} slots" if batch > self._slots else None

    def run(self, prompts: Sequence[Prompt], batch: int, temperature: float, max_tokens: int) -> Pace:  # noqa: ARG002
        """Decode greedily, whatever the temperature; each batch runs until its first reply ends."""
        waves = [prompts[i : i + batch] for i in range(0, len(prompts), batch)]
        paces = [self._wave(wave, max_tokens) for wave in waves]
        return Pace(sum(pace.tokens for pace in paces), sum(pace.seconds for pace in paces))

    @torch.inference_mode()
    def read(self, ids: Sequence[int]) -> float | None:
        """Read it in one pass."""
        started = time.perf_counter()
        self._target.prefill(torch.tensor([ids[:-1]], device=self._target.device), [0], [0])
        if self._target.device.type == "cuda":
            torch.cuda.synchronize(self._target.device)
        return time.perf_counter() - started

    @torch.inference_mode()
    def _wave(self, prompts: Sequence[Prompt], max_tokens: int) -> Pace:
        texts = [encoded(prompt, self._loaded.tokenizer) for prompt in prompts]
        device = self._target.device
        slots = list(range(len(texts)))
        for slot, ids in zip(slots, texts, strict=True):
            self._target.prefill(torch.tensor([ids[:-1]], device=device), [slot], [0])
        lengths = [len(ids) - 1 for ids in texts]
        tokens = torch.tensor([[ids[-1]] for ids in texts], device=device)
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
