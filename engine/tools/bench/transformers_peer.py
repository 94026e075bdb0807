"""Peer transformers: its own `generate`, plain, with prompt lookup, or with an assistant model."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.generation.streamers import BaseStreamer

from specchat.engine.errors import EngineError
from specchat.engine.models.load import LoadedModel
from specchat.engine.tools.bench.pace import Pace
from specchat.engine.tools.bench.prompts import Prompt, encoded


class TransformersPeer:
    """transformers' `generate` in one configuration.

    Args:
        loaded: a model that the engine does not use, because the engine changes the attention of its own.
        gamma: draft length; 0 for plain decoding.
        assistant: draft model; without one, drafts come from prompt lookup.
    """

    def __init__(self, loaded: LoadedModel, gamma: int = 0, assistant: LoadedModel | None = None) -> None:
        self._loaded = loaded
        self._assistant = assistant
        self.gamma = gamma
        drafting = " assisted" if assistant else " prompt lookup"
        self.name = f"transformers{drafting if gamma else ''}"

    def refusal(self, batch: int) -> str | None:
        """Refuses batches when drafting: transformers drafts for one request at a time."""
        return "transformers drafts for a batch of 1 only" if self.gamma and batch > 1 else None

    def run(self, prompts: Sequence[Prompt], batch: int, temperature: float, max_tokens: int) -> Pace:
        """Generate in batches; each is timed from its first token to the end of its first reply."""
        waves = [prompts[i : i + batch] for i in range(0, len(prompts), batch)]
        paces = [self._wave(wave, temperature, max_tokens) for wave in waves]
        return Pace(sum(pace.tokens for pace in paces), sum(pace.seconds for pace in paces))

    def read(self, ids: Sequence[int]) -> float | None:  # noqa: ARG002
        """Not measured: `generate` reads and samples in one."""
        return None

    def _wave(self, prompts: Sequence[Prompt], temperature: float, max_tokens: int) -> Pace:
        clock = _Clock(self._loaded.eos_ids)
        ids, mask = self._padded([encoded(prompt, self._loaded.tokenizer) for prompt in prompts])
        network: Any = self._loaded.model
        try:
            network.generate(
                ids,
                attention_mask=mask,
                streamer=clock,
                generation_config=self._settings(temperature, max_tokens),
                **self._drafting(),
            )
        except Exception as error:  # transformers' own limits
            raise EngineError(f"{self.name} failed: {error}") from error
        return clock.pace()

    def _settings(self, temperature: float, max_tokens: int) -> GenerationConfig:
        how = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {}
        eos = sorted(self._loaded.eos_ids)
        return _generation_config(
            max_new_tokens=max_tokens, eos_token_id=eos or None, pad_token_id=self._pad, use_cache=True, **how
        )

    def _drafting(self) -> dict[str, Any]:
        if not self.gamma:
            return {}
        if self._assistant is None:
            return {"prompt_lookup_num_tokens": self.gamma}
        # Set on the assistant's own config: a fixed draft length, and no early stop at low confidence.
        self._assistant.model.generation_config = _generation_config(
            num_assistant_tokens=self.gamma,
            num_assistant_tokens_schedule="constant",
            assistant_confidence_threshold=0.0,
            pad_token_id=self._pad,
        )
        return {"assistant_model": self._assistant.model}

    @property
    def _pad(self) -> int:
        return min(self._loaded.eos_ids, default=0)

    def _padded(self, prompts: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids and attention mask [B, T] of prompts, padded on the left."""
        longest = max(map(len, prompts))
        device = self._loaded.model.device
        ids = [[self._pad] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
        mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


class _Clock(BaseStreamer):
    """Records token times until the first reply of the batch ends, from where on the batch is smaller."""

    def __init__(self, eos: Collection[int]) -> None:
        self._eos = eos
        self._arrivals: list[tuple[float, int]] = []
        self._prompt_seen = False
        self._ended = False

    def put(self, value: torch.Tensor) -> None:
        """Called with the prompt first, then with each step's tokens."""
        if not self._prompt_seen:
            self._prompt_seen = True
        elif not self._ended:
            self._arrivals.append((time.perf_counter(), value.numel()))
            self._ended = any(token in self._eos for token in value.flatten().tolist())

    def end(self) -> None:
        """Called at the end; does nothing."""

    def pace(self) -> Pace:
        """Tokens and seconds after the first step, which includes prefill."""
        if len(self._arrivals) < 2:
            return Pace(0, 0.0)
        return Pace(sum(count for _, count in self._arrivals[1:]), self._arrivals[-1][0] - self._arrivals[0][0])


def _generation_config(**settings: Any) -> GenerationConfig:
    return GenerationConfig(**settings)  # type: ignore[no-untyped-call]
