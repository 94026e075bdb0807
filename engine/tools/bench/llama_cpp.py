"""Peer llama.cpp, run by the library xllamacpp: the same GGUF file, token ids, sampler settings and threads."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from specchat.engine.errors import EngineError, first_line
from specchat.engine.tools.bench.figures import Pace
from specchat.engine.tools.prompts import Prompt

VARIABLE = "SPECCHAT_LLAMA_CPP"
"""Environment variable that names the folder of xllamacpp if the option does not."""
_NGRAM = 3
"""Tokens that prompt lookup compares; llama.cpp's default of 12 rarely finds a match in short texts."""
_SEED = 1


def load_library(folder: Path | None) -> Any:
    """The module xllamacpp.

    Args:
        folder: that it was installed into (`pip install --target`); None for the folder that `VARIABLE` names, or for
            this environment.

    Raises:
        EngineError: it is not installed there; says how to install it.
    """
    named = folder or os.environ.get(VARIABLE)
    if named:
        sys.path.append(str(Path(named).expanduser()))
    try:
        import xllamacpp
    except ImportError as error:
        target = f"--target {named} " if named else ""
        raise EngineError(
            f"it needs the package xllamacpp ({first_line(error)}): run `pip install {target}xllamacpp`"
        ) from None
    return xllamacpp


def describe(library: Any) -> tuple[str, str]:
    """Version of the library, and the instruction sets that it was compiled for."""
    system = str(library.get_system_info()).replace("CPU :", "")
    pairs = [part.split("=") for part in system.split("|") if "=" in part]
    return f"xllamacpp {version('xllamacpp')}", ", ".join(name.strip() for name, on in pairs if on.strip() != "0")


@dataclass(frozen=True, slots=True)
class LlamaCppModel:
    """How a GGUF file is loaded by llama.cpp; everything else is its default."""

    file: Path
    context: int
    """Tokens per slot."""
    slots: int
    threads: int
    on_cpu: bool
    """Use no GPU."""

    def serve(self, library: Any, gamma: int) -> Any:
        """llama.cpp's server, in this process.

        Raises:
            EngineError: llama.cpp cannot read the file, or has too little memory.
        """
        parameters = library.CommonParams()
        parameters.model.path = str(self.file)
        parameters.n_ctx = self.context * self.slots
        parameters.n_parallel = self.slots
        parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = self.threads
        parameters.port = 0
        parameters.verbosity = -1
        if self.on_cpu:
            parameters.n_gpu_layers = 0
        if gamma:
            simple = library.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE
            parameters.speculative.types = [simple]
            parameters.speculative.ngram_simple.size_n = _NGRAM
            parameters.speculative.ngram_simple.size_m = gamma
        try:
            return library.Server(parameters)
        except RuntimeError as error:
            raise EngineError(
                f"it cannot load {self.file} with {self.slots} slots of {self.context} tokens: {first_line(error)}"
            ) from None


class LlamaCppPeer:
    """llama.cpp, plain or with its own prompt lookup.

    Its own clock is read: from the first token of a reply to the last. The prompts of a batch are read beforehand and
    its replies do not end early, so that all rows decode together.

    Args:
        library: the module xllamacpp.
        model: how the model is loaded.
        encode: prompt to token ids, by the engine's tokenizer: both sides read the same token ids.
        gamma: draft length of prompt lookup; 0 for plain decoding.

    Raises:
        EngineError: the model cannot be loaded.
    """

    def __init__(self, library: Any, model: LlamaCppModel, encode: Callable[[Prompt], list[int]], gamma: int) -> None:
        self.gamma = gamma
        self.name = "llama.cpp prompt lookup" if gamma else "llama.cpp"
        self._slots = model.slots
        self._encode = encode
        self._server = model.serve(library, gamma)

    def refusal(self, batch: int) -> str | None:
        """Refuses batches of prompt lookup, and those larger than the number of slots."""
        if self.gamma and batch > 1:
            return "it drafts for a batch of 1 only"
        return f"it has {self._slots} slots" if batch > self._slots else None

    def run(self, prompts: Sequence[Prompt], batch: int, temperature: float, max_tokens: int) -> Pace:
        """Decode in batches."""
        ids = [self._encode(prompt) for prompt in prompts]
        return Pace.total(
            self._decode(ids[first : first + batch], temperature, max_tokens) for first in range(0, len(ids), batch)
        )

    def read(self, ids: Sequence[int]) -> float | None:
        """Seconds to read a prompt without its last token, which the first pass of a reply reads."""
        return float(self._complete(ids[:-1], 0.0, 1, cache_prompt=False)["prompt_ms"]) / 1000

    def _decode(self, batch: Sequence[Sequence[int]], temperature: float, max_tokens: int) -> Pace:
        if len(batch) == 1:
            timings = [self._complete(batch[0], temperature, max_tokens, cache_prompt=False)]
        else:
            for ids in batch:
                self._complete(ids, temperature, 1)
            with ThreadPoolExecutor(len(batch)) as pool:
                ask = [pool.submit(self._complete, ids, temperature, max_tokens, ignore_eos=True) for ids in batch]
                timings = [each.result() for each in ask]
        tokens = sum(int(timing["predicted_n"]) - 1 for timing in timings)
        return Pace(tokens, max(float(timing["predicted_ms"]) for timing in timings) / 1000)

    def _complete(self, ids: Sequence[int], temperature: float, max_tokens: int, **more: bool) -> dict[str, Any]:
        """Timings of one reply.

        Raises:
            EngineError: llama.cpp reports a failure.
        """
        request = {
            "prompt": list(ids),
            "n_predict": max_tokens,
            "temperature": temperature,
            "top_k": 0,
            "top_p": 1.0,
            "min_p": 0.0,
            "seed": _SEED,
            **more,
        }
        answer = self._server.handle_completions(request)
        if "error" in answer:
            raise EngineError(f"llama.cpp failed: {answer['error'].get('message', answer['error'])}")
        return dict(answer["timings"])
