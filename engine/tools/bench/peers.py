"""Peers: other decoders that run the same prompts with the same model."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from specchat.engine.config import EngineConfig
from specchat.engine.errors import EngineError
from specchat.engine.models.load import LoadedModel, load_model, pick_dtype
from specchat.engine.models.packed.find import gguf_file
from specchat.engine.models.resolve import resolve
from specchat.engine.models.store import ModelStore
from specchat.engine.progress import ignore_progress
from specchat.engine.tools.bench.figures import Pace
from specchat.engine.tools.bench.llama_cpp import LlamaCppModel, LlamaCppPeer, describe, load_library
from specchat.engine.tools.prompts import Prompt
from specchat.engine.worker.assembly import Assembly
from specchat.engine.worker.obtain import Model, make_runner

PEERS = ("loop", "transformers", "llama.cpp")


class Peer(Protocol):
    """Another decoder."""

    name: str
    gamma: int
    """Draft length; 0 for plain decoding."""

    def refusal(self, batch: int) -> str | None:
        """Why it cannot run `batch` requests at once; None if it can."""

    def run(self, prompts: Sequence[Prompt], batch: int, temperature: float, max_tokens: int) -> Pace:
        """Decode all prompts, `batch` at once; each batch is timed from its first token to the end of a reply."""

    def read(self, ids: Sequence[int]) -> float | None:
        """Seconds to read a prompt without its last token; None if that cannot be measured."""


@dataclass(slots=True)
class Peers:
    """Peers of one benchmark."""

    peers: list[Peer] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Why one is left out, a sentence each."""
    versions: dict[str, str] = field(default_factory=dict)
    instruction_sets: dict[str, str] = field(default_factory=dict)
    """Instruction sets of each peer that reports them."""


@dataclass(frozen=True, slots=True)
class PeerMaker:
    """Loads peers, in addition to an engine that is loaded.

    Args:
        config: the engine's.
        made: its models.
        gammas: fixed draft lengths.
        batches: batch sizes of the benchmark.
        llama_cpp: folder that xllamacpp was installed into, if given.
    """

    config: EngineConfig
    made: Assembly
    gammas: Sequence[int]
    batches: Sequence[int]
    llama_cpp: Path | None = None

    def load(self, names: Sequence[str]) -> Peers:
        """Load the peers of these names; one that cannot run is left out with a note."""
        loaded = Peers()
        if "loop" in names:
            loaded.peers.append(LoopPeer(self.made.model, self.made.target.cache.slots, self.made.target.context))
        if "transformers" in names:
            loaded.peers += self._transformers()
        if "llama.cpp" in names:
            try:
                self._add_llama_cpp(loaded)
            except EngineError as error:
                loaded.notes.append(f"llama.cpp is left out: {error}")
        refusals = {
            f"{peer.name}: {why}": None for peer in loaded.peers for why in map(peer.refusal, self.batches) if why
        }
        loaded.notes += refusals
        return loaded

    def _transformers(self) -> list[Peer]:
        target = self._again(self.config.target, self.made.model)
        peers: list[Peer] = [TransformersPeer(target, gamma) for gamma in (0, *self.gammas)]
        if self.made.drafts:  # it takes one
            draft = self._again(self.config.drafts[0], self.made.drafts[0])
            peers += [TransformersPeer(target, gamma, draft) for gamma in self.gammas]
        return peers

    def _again(self, spec: str, loaded: Model) -> LoadedModel:
        """Load a second copy of a model, unquantised, because the engine changes the attention of the first."""
        folder = resolve(spec, ModelStore(self.config.models), ignore_progress)
        dtype = loaded.dtype if isinstance(loaded, LoadedModel) else pick_dtype("auto", loaded.device, folder)
        return load_model(folder, loaded.device, dtype, ignore_progress)

    def _add_llama_cpp(self, loaded: Peers) -> None:
        library = load_library(self.llama_cpp)
        file = gguf_file(self.config.target, ModelStore(self.config.models), ignore_progress)
        if file is None:
            raise EngineError(f"it reads GGUF files only, and {self.config.target} is none: give one as --target")
        on_cpu = self.made.model.device.type == "cpu"
        model = LlamaCppModel(file, self.made.target.context, max(self.batches), torch.get_num_threads(), on_cpu)
        loaded.peers += [LlamaCppPeer(library, model, self._encode, gamma) for gamma in (0, *self.gammas)]
        loaded.versions["llama.cpp"], loaded.instruction_sets["llama.cpp"] = describe(library)

    def _encode(self, prompt: Prompt) -> list[int]:
        return prompt.encode(self.made.model.tokenizer)


class LoopPeer:
    """Greedy decoding loop over the engine's own network, with a separate KV cache and no speculation code.

    γ = 0 has to match its speed.

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
        return Pace.total(self._decode(prompts[i : i + batch], max_tokens) for i in range(0, len(prompts), batch))

    @torch.inference_mode()
    def read(self, ids: Sequence[int]) -> float | None:
        """Read it in one pass."""
        started = time.perf_counter()
        self._target.prefill(torch.tensor([ids[:-1]], device=self._target.device), [0], [0])
        if self._target.device.type == "cuda":
            torch.cuda.synchronize(self._target.device)
        return time.perf_counter() - started

    @torch.inference_mode()
    def _decode(self, prompts: Sequence[Prompt], max_tokens: int) -> Pace:
        texts = [prompt.encode(self._loaded.tokenizer) for prompt in prompts]
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


class TransformersPeer:
    """transformers' `generate`: plain, with prompt lookup, or with an assistant model.

    Args:
        loaded: a model that the engine does not use: the engine changes the attention of its models.
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
        return Pace.total(
            self._decode(prompts[i : i + batch], temperature, max_tokens) for i in range(0, len(prompts), batch)
        )

    def read(self, ids: Sequence[int]) -> float | None:  # noqa: ARG002
        """Not measured: `generate` reads and samples in one call."""
        return None

    def _decode(self, prompts: Sequence[Prompt], temperature: float, max_tokens: int) -> Pace:
        clock = BatchClock(self._loaded.eos_ids)
        ids, mask = self._padded([prompt.encode(self._loaded.tokenizer) for prompt in prompts])
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {}
        config = _generation_config(
            max_new_tokens=max_tokens,
            eos_token_id=sorted(self._loaded.eos_ids) or None,
            pad_token_id=self._pad,
            use_cache=True,
            **sampling,
        )
        network: Any = self._loaded.model
        try:
            network.generate(ids, attention_mask=mask, streamer=clock, generation_config=config, **self._drafting())
        except Exception as error:  # transformers' own limits
            raise EngineError(f"{self.name} failed: {error}") from error
        return clock.pace()

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


class BatchClock:
    """A streamer of transformers that records token times until the first reply of the batch ends."""

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


def _generation_config(**settings: Any) -> Any:
    from transformers import GenerationConfig

    return GenerationConfig(**settings)  # type: ignore[no-untyped-call]
