"""Peers: other decoders that run the same prompts with the same model."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence, Set
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from specchat.engine.config import EngineConfig
from specchat.engine.errors import EngineError, errors_as, first_line
from specchat.engine.models.load import LoadedModel, load_model, pick_dtype
from specchat.engine.models.packed.load import Model
from specchat.engine.models.resolve import resolve
from specchat.engine.models.store import ModelStore
from specchat.engine.progress import ignore_progress
from specchat.engine.tools.bench.figures import Pace
from specchat.engine.tools.prompts import Prompt
from specchat.engine.worker.assembly import Assembly
from specchat.engine.worker.obtain import make_runner

PEERS = ("loop", "transformers", "llama.cpp")
_SEED = 1


class Peer:
    """Another decoder.

    Args:
        name: name in the report.
        gamma: draft length; 0 for plain decoding.
        slots: largest batch size; None if it has no limit.
    """

    def __init__(self, name: str, gamma: int = 0, slots: int | None = None) -> None:
        self.name = name
        self.gamma = gamma
        self._slots = slots

    def refusal(self, batch: int) -> str | None:
        """Why it cannot run `batch` requests at once; None if it can."""
        if self.gamma and batch > 1:
            return "it drafts for a batch of 1 only"
        return f"it has {self._slots} slots" if self._slots and batch > self._slots else None

    def run(self, prompts: Sequence[Prompt], batch: int, temperature: float, max_tokens: int) -> Pace:
        """Decode all prompts, `batch` at once; each batch is timed from its first token to the end of a reply."""
        batches = (prompts[first : first + batch] for first in range(0, len(prompts), batch))
        paces = [self._decode(each, temperature, max_tokens) for each in batches]
        return Pace(sum(pace.tokens for pace in paces), sum(pace.seconds for pace in paces))

    def read(self, ids: Sequence[int]) -> float | None:  # noqa: ARG002
        """Seconds to read a prompt without its last token; None if that cannot be measured."""
        return None

    def _decode(self, prompts: Sequence[Prompt], temperature: float, max_tokens: int) -> Pace:
        """Decode one batch."""
        raise NotImplementedError


class Peers:
    """Peers of one benchmark, loaded in addition to the engine; one that cannot run is left out with a note.

    Args:
        names: of `PEERS`.
        config: the engine's.
        made: its models.
        gammas: fixed draft lengths.
        batches: batch sizes of the benchmark.
        llama_cpp: folder that xllamacpp was installed into, if given.
    """

    def __init__(
        self,
        names: Sequence[str],
        config: EngineConfig,
        made: Assembly,
        gammas: Sequence[int],
        batches: Sequence[int],
        llama_cpp: Path | None,
    ) -> None:
        self.peers: list[Peer] = []
        self.notes: list[str] = []
        """Why one is left out, a sentence each."""
        self.versions: dict[str, str] = {}
        self.instruction_sets: dict[str, str] = {}
        """Instruction sets of each peer that reports them."""
        model, target, store = made.model, made.target, ModelStore(config.models)
        if "loop" in names:
            self.peers.append(LoopPeer(model, target.cache.slots, target.context))
        if "transformers" in names:
            copy = _copy(config.target, store, model)
            self.peers += [TransformersPeer(copy, gamma) for gamma in (0, *gammas)]
            if made.drafts:  # it takes one
                draft = _copy(config.drafts[0], store, made.drafts[0])
                self.peers += [TransformersPeer(copy, gamma, draft) for gamma in gammas]
        if "llama.cpp" in names:
            try:
                library = load_library(llama_cpp)
                file = resolve(config.target, store, ignore_progress).file()
                if file is None:
                    raise EngineError(f"it reads GGUF files only, and {config.target} is not one: give one as --target")
                for gamma in (0, *gammas):
                    self.peers.append(LlamaCppPeer(llama_cpp, file, model, target.context, max(batches), gamma))
                self.versions["llama.cpp"], self.instruction_sets["llama.cpp"] = describe(library)
            except EngineError as error:
                self.notes.append(f"llama.cpp is left out: {error}")
        refusals = ((peer.name, peer.refusal(batch)) for peer in self.peers for batch in batches)
        self.notes += dict.fromkeys(f"{name}: {why}" for name, why in refusals if why)


def _copy(spec: str, store: ModelStore, used: Model) -> LoadedModel:
    """Load a second copy of a model, unquantised, because the engine changes the attention of the first."""
    folder = resolve(spec, store, ignore_progress).folder()
    dtype = used.dtype if isinstance(used, LoadedModel) else pick_dtype("auto", used.device, folder)
    return load_model(folder, used.device, dtype, ignore_progress)


class LoopPeer(Peer):
    """Greedy decoding loop over the engine's own network, with a separate KV cache and no speculation code.

    It decodes greedily, whatever the temperature; each batch runs until its first reply ends. γ = 0 has to match its
    speed.

    Args:
        loaded: the model.
        slots: largest batch size.
        context: tokens per slot.
    """

    def __init__(self, loaded: Model, slots: int, context: int) -> None:
        super().__init__("bare loop", slots=slots)
        self._loaded = loaded
        self._target = make_runner(loaded, slots, context, 1)

    @torch.inference_mode()
    def read(self, ids: Sequence[int]) -> float | None:
        """Read it in one pass."""
        started = time.perf_counter()
        self._target.prefill(torch.tensor([ids[:-1]], device=self._target.device), [0], [0])
        if self._target.device.type == "cuda":
            torch.cuda.synchronize(self._target.device)
        return time.perf_counter() - started

    @torch.inference_mode()
    def _decode(self, prompts: Sequence[Prompt], temperature: float, max_tokens: int) -> Pace:  # noqa: ARG002
        texts = [prompt.encode(self._loaded.tokenizer) for prompt in prompts]
        device, slots = self._target.device, list(range(len(texts)))
        for slot, ids in enumerate(texts):
            self._target.prefill(torch.tensor([ids[:-1]], device=device), [slot], [0])
        lengths = [len(ids) - 1 for ids in texts]
        tokens = torch.tensor([[ids[-1]] for ids in texts], device=device)
        started, step = 0.0, 0
        for step in range(max_tokens):
            tokens = self._target.forward(tokens, slots, [length + step for length in lengths]).argmax(-1)
            ended = not self._loaded.eos_ids.isdisjoint(tokens.flatten().tolist())
            if step == 0:
                started = time.perf_counter()
            if ended:
                break
        return Pace(step * len(slots), time.perf_counter() - started)


class TransformersPeer(Peer):
    """transformers' `generate`: plain, with prompt lookup, or with an assistant model.

    Args:
        loaded: a model that the engine does not use: the engine changes the attention of its models.
        gamma: draft length; 0 for plain decoding.
        assistant: draft model; without one, drafts come from prompt lookup.
    """

    def __init__(self, loaded: LoadedModel, gamma: int = 0, assistant: LoadedModel | None = None) -> None:
        drafting = " assisted" if assistant else " prompt lookup"
        super().__init__(f"transformers{drafting if gamma else ''}", gamma)
        self._loaded = loaded
        self._pad = min(loaded.eos_ids, default=0)
        self._drafting: dict[str, Any] = {"prompt_lookup_num_tokens": gamma} if gamma else {}
        if assistant:
            # Set on the assistant's own config: a fixed draft length, and no early stop at low confidence.
            assistant.model.generation_config = _generation_config(
                num_assistant_tokens=gamma,
                num_assistant_tokens_schedule="constant",
                assistant_confidence_threshold=0.0,
                pad_token_id=self._pad,
            )
            self._drafting = {"assistant_model": assistant.model}

    def _decode(self, prompts: Sequence[Prompt], temperature: float, max_tokens: int) -> Pace:
        clock = BatchClock(self._loaded.eos_ids)
        texts = [torch.tensor(prompt.encode(self._loaded.tokenizer), device=self._loaded.device) for prompt in prompts]
        left = {"batch_first": True, "padding_side": "left"}
        ids = pad_sequence(texts, padding_value=self._pad, **left)  # type: ignore[arg-type]
        mask = pad_sequence([torch.ones_like(text) for text in texts], **left)  # type: ignore[arg-type]
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {}
        config = _generation_config(
            max_new_tokens=max_tokens,
            eos_token_id=sorted(self._loaded.eos_ids) or None,
            pad_token_id=self._pad,
            use_cache=True,
            **sampling,
        )
        network: Any = self._loaded.model
        with errors_as(lambda error: f"{self.name} failed: {error}"):  # transformers' own limits
            network.generate(ids, attention_mask=mask, streamer=clock, generation_config=config, **self._drafting)
        return clock.pace()


class BatchClock:
    """A streamer of transformers that records token times until the first reply of the batch ends."""

    def __init__(self, eos: Set[int]) -> None:
        self._eos = eos
        self._arrivals: list[tuple[float, int]] = []
        """Times and numbers of tokens, the prompt's first."""
        self._ended = False

    def put(self, value: torch.Tensor) -> None:
        """Called with the prompt first, then with each step's tokens."""
        if not self._ended:
            self._arrivals.append((time.perf_counter(), value.numel()))
            self._ended = len(self._arrivals) > 1 and not self._eos.isdisjoint(value.flatten().tolist())

    def end(self) -> None:
        """Called at the end; does nothing."""

    def pace(self) -> Pace:
        """Tokens and seconds after the first step, which includes prefill."""
        steps = self._arrivals[1:]
        return Pace(sum(count for _, count in steps[1:]), steps[-1][0] - steps[0][0] if steps else 0.0)


def _generation_config(**settings: Any) -> Any:
    from transformers import GenerationConfig

    return GenerationConfig(**settings)  # type: ignore[no-untyped-call]


class LlamaCppPeer(Peer):
    """llama.cpp's server: the same GGUF file, token ids, sampler settings and threads.

    Args:
        library: folder of xllamacpp (`load_library`).
        file: the GGUF file.
        model: the engine's, for its tokenizer and device.
        context: tokens per slot.
        slots: number of slots.
        gamma: draft length of its prompt lookup; 0 for plain decoding.

    Raises:
        EngineError: llama.cpp cannot read the file, or has too little memory.
    """

    def __init__(self, library: Path | None, file: Path, model: Model, context: int, slots: int, gamma: int) -> None:
        super().__init__("llama.cpp prompt lookup" if gamma else "llama.cpp", gamma, slots)
        self._tokenizer = model.tokenizer
        machine = {"threads": torch.get_num_threads(), "gpu": model.device.type != "cpu"}
        self._server = LlamaServer(library=library, file=file, context=context, slots=slots, gamma=gamma, **machine)

    def read(self, ids: Sequence[int]) -> float | None:
        """Seconds to read a prompt without its last token, which the first pass of a reply reads."""
        (timing,) = self._server.complete([_request(ids[:-1], 0.0, 1, cache_prompt=False)])
        return float(timing["prompt_ms"]) / 1000

    def _decode(self, prompts: Sequence[Prompt], temperature: float, max_tokens: int) -> Pace:
        batch = [prompt.encode(self._tokenizer) for prompt in prompts]
        schemas = [{"json_schema": json.loads(each.constraint.text)} if each.constraint else {} for each in prompts]
        if len(batch) == 1:
            requests = [_request(batch[0], temperature, max_tokens, cache_prompt=False, **schemas[0])]
        else:
            for ids in batch:
                self._server.complete([_request(ids, temperature, 1)])
            whole = [schema or {"ignore_eos": True} for schema in schemas]
            requests = [_request(ids, temperature, max_tokens, **more) for ids, more in zip(batch, whole, strict=True)]
        timings = self._server.complete(requests)
        tokens = sum(int(timing["predicted_n"]) - 1 for timing in timings)
        return Pace(tokens, max(float(timing["predicted_ms"]) for timing in timings) / 1000)


def _request(ids: Sequence[int], temperature: float, max_tokens: int, **more: Any) -> dict[str, Any]:
    """A request for one reply, as llama.cpp's server takes it."""
    sampling = {"temperature": temperature, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": _SEED}
    return {"prompt": list(ids), "n_predict": max_tokens, **sampling, **more}


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
