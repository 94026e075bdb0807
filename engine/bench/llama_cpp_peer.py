"""The same prompts through llama.cpp, by llama-cpp-python where it is installed and the target is a GGUF file."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from engine.bench.pace import Pace
from engine.bench.prompts import Prompt

Encode = Callable[[Prompt], list[int]]
"""The engine's own tokens of a prompt: a GGUF file of the same model has the same vocabulary."""


def llama_cpp_refusal(target: str) -> str | None:
    """Why llama.cpp cannot take part; None where it can."""
    if importlib.util.find_spec("llama_cpp") is None:
        return "llama.cpp is left out: llama-cpp-python is not installed (pip install llama-cpp-python)"
    if not target.lower().endswith(".gguf"):
        return "llama.cpp is left out: it reads GGUF files only, so give one as --target"
    return None


class LlamaCppPeer:
    """One way of generating.

    Args:
        file: the target.
        context: tokens of prompt and reply together.
        encode: from a prompt to tokens.
        gamma: draft length of its prompt lookup; 0 for plain generation.
    """

    def __init__(self, file: Path, context: int, encode: Encode, gamma: int = 0) -> None:
        import llama_cpp  # type: ignore[import-not-found]
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding  # type: ignore[import-not-found]

        self.gamma = gamma
        self.name = "llama.cpp prompt lookup" if gamma else "llama.cpp"
        self._encode = encode
        self._model: Any = llama_cpp.Llama(
            str(file),
            n_ctx=context,
            n_gpu_layers=-1,
            draft_model=LlamaPromptLookupDecoding(num_pred_tokens=gamma) if gamma else None,
            verbose=False,
        )

    def refusal(self, batch: int) -> str | None:
        """The Python binding decodes one request at a time."""
        return "llama-cpp-python decodes a batch of 1 only" if batch > 1 else None

    def run(self, prompts: Sequence[Prompt], batch: int, temperature: float, max_tokens: int) -> Pace:  # noqa: ARG002
        """Generate one prompt after the other."""
        paces = [self._one(prompt, temperature, max_tokens) for prompt in prompts]
        return Pace(sum(pace.tokens for pace in paces), sum(pace.seconds for pace in paces))

    def _one(self, prompt: Prompt, temperature: float, max_tokens: int) -> Pace:
        arrivals: list[float] = []
        sampling = {"temp": temperature, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0}
        for token in self._model.generate(self._encode(prompt), **sampling):
            arrivals.append(time.perf_counter())
            if token == self._model.token_eos() or len(arrivals) == max_tokens:
                break
        if len(arrivals) < 2:
            return Pace(0, 0.0)
        return Pace(len(arrivals) - 1, arrivals[-1] - arrivals[0])
