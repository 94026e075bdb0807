"""llama.cpp's server in a separate process.

Next to the engine it would be slower than alone: it would share torch's OpenMP library, whose threads stop spinning
between two steps once there are more of them than cores.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from specchat.engine.errors import EngineError, errors_as, first_line

VARIABLE = "SPECCHAT_LLAMA_CPP"
"""Environment variable that names the folder of xllamacpp if the option does not."""
_NGRAM = 3
"""Tokens that llama.cpp's prompt lookup compares; its default of 12 rarely finds a match in short texts."""
_servers: list[Any] = []
"""The server of this process."""


class LlamaServer:
    """A server whose process ends with this one.

    Args:
        settings: library (folder of xllamacpp, see `load_library`), file (the GGUF file), context (tokens per slot),
            slots, gamma (draft length of its prompt lookup; 0 for plain decoding), threads, and gpu (whether it may use
            one).

    Raises:
        EngineError: llama.cpp is not installed, cannot read the file, has too little memory, or crashed.
    """

    def __init__(self, **settings: Any) -> None:
        self._process = ProcessPoolExecutor(1, get_context("spawn"))
        self._call(_start, settings)

    def complete(self, requests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Timings of requests that run at the same time.

        Raises:
            EngineError: llama.cpp reports a failure, or crashed.
        """
        answers = self._call(_complete, requests)
        for answer in answers:
            if "error" in answer:
                raise EngineError(f"llama.cpp failed: {answer['error'].get('message', answer['error'])}")
        return [dict(answer["timings"]) for answer in answers]

    def _call(self, function: Callable[[Any], Any], given: Any) -> Any:
        """Result of a function in the server's process."""
        ended = "the process of llama.cpp has ended by itself: try without --peer llama.cpp"
        with errors_as(lambda _: ended, BrokenProcessPool):
            return self._process.submit(function, given).result()


def load_library(folder: Path | None) -> Any:
    """The module xllamacpp.

    Args:
        folder: that it was installed into (`pip install --target`); None for the folder that `VARIABLE` names, or for
            this environment.

    Raises:
        EngineError: it is not installed there; says how to install it.
    """
    place = folder or os.environ.get(VARIABLE)
    if place:
        sys.path.append(str(Path(place).expanduser()))
    try:
        import xllamacpp
    except ImportError as error:
        target = f"--target {place} " if place else ""
        raise EngineError(
            f"it needs the package xllamacpp ({first_line(error)}): run `pip install {target}xllamacpp`"
        ) from None
    return xllamacpp


def describe(library: Any) -> tuple[str, str]:
    """Version of the library, and the instruction sets that it was compiled for."""
    system = str(library.get_system_info()).replace("CPU :", "")
    pairs = [part.split("=") for part in system.split("|") if "=" in part]
    return f"xllamacpp {version('xllamacpp')}", ", ".join(name.strip() for name, on in pairs if on.strip() != "0")


def _start(settings: dict[str, Any]) -> None:
    """Start the server of this process."""
    library, file = load_library(settings["library"]), settings["file"]
    context, slots, gamma = (settings[name] for name in ("context", "slots", "gamma"))
    parameters = library.CommonParams()  # its defaults for everything else
    parameters.model.path = str(file)
    parameters.n_ctx = context * slots
    parameters.n_parallel = slots
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = settings["threads"]
    parameters.port = 0
    parameters.verbosity = -1
    if not settings["gpu"]:
        parameters.n_gpu_layers = 0
    if gamma:
        speculative = parameters.speculative
        speculative.types = [library.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
        speculative.ngram_simple.size_n, speculative.ngram_simple.size_m = _NGRAM, gamma
    room = f"{slots} slots of {context} tokens"
    with errors_as(lambda error: f"it cannot load {file} with {room}: {first_line(error)}", RuntimeError):
        _servers.append(library.Server(parameters))


def _complete(requests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Answers of the server of this process."""
    with ThreadPoolExecutor(len(requests)) as threads:
        return list(threads.map(_servers[0].handle_completions, requests))
