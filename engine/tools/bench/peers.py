"""The peers that a benchmark asks for, loaded; and why others are left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from specchat.engine.config import EngineConfig
from specchat.engine.errors import EngineError
from specchat.engine.models.load import LoadedModel, load_model, pick_dtype
from specchat.engine.models.packed.find import gguf_file
from specchat.engine.models.resolve import resolve
from specchat.engine.models.store import ModelStore
from specchat.engine.progress import ignore_progress
from specchat.engine.tools.bench.llama_cpp_decoder import LlamaCppDecoder
from specchat.engine.tools.bench.llama_cpp_library import LlamaCppLibrary, find_llama_cpp
from specchat.engine.tools.bench.llama_cpp_peer import LlamaCppPeer
from specchat.engine.tools.bench.loop_peer import LoopPeer
from specchat.engine.tools.bench.pace import Peer
from specchat.engine.tools.bench.prompts import Prompt, encoded
from specchat.engine.worker.assembly import Assembly
from specchat.engine.worker.obtain import Model

PEERS = ("loop", "transformers", "llama.cpp")


@dataclass(slots=True)
class Peers:
    """Peers of one benchmark."""

    peers: list[Peer] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Why one is left out, a sentence each."""
    versions: dict[str, str] = field(default_factory=dict)
    instruction_sets: dict[str, str] = field(default_factory=dict)
    """What each computes with, where that can be asked."""


@dataclass(frozen=True, slots=True)
class PeerMaker:
    """Loads peers beside an engine that is loaded.

    Args:
        config: the engine's.
        made: its models.
        gammas: fixed draft lengths.
        batches: that will be run.
        llama_cpp: folder of llama.cpp's libraries, if given.
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
        from specchat.engine.tools.bench.transformers_peer import TransformersPeer

        target = self._again(self.config.target, self.made.model)
        peers: list[Peer] = [TransformersPeer(target)]
        peers += [TransformersPeer(target, gamma) for gamma in self.gammas]
        if self.made.drafts:  # it takes one
            draft = self._again(self.config.drafts[0], self.made.drafts[0])
            peers += [TransformersPeer(target, gamma, draft) for gamma in self.gammas]
        return peers

    def _again(self, spec: str, loaded: Model) -> LoadedModel:
        """Load a second copy of a model, unquantised, because the engine changes the attention of its own."""
        folder = resolve(spec, ModelStore(self.config.models), ignore_progress)
        dtype = loaded.dtype if isinstance(loaded, LoadedModel) else pick_dtype("auto", loaded.device, folder)
        return load_model(folder, loaded.device, dtype, ignore_progress)

    def _add_llama_cpp(self, loaded: Peers) -> None:
        library = LlamaCppLibrary(find_llama_cpp(self.llama_cpp))
        file = gguf_file(self.config.target, ModelStore(self.config.models), ignore_progress)
        if file is None:
            raise EngineError(f"it reads GGUF files only, and {self.config.target} is none: give one as --target")
        decoder = LlamaCppDecoder(
            library,
            file,
            self.made.target.context,
            max(self.batches),
            torch.get_num_threads(),
            on_cpu=self.made.model.device.type == "cpu",
        )
        loaded.peers += [
            LlamaCppPeer(decoder, self._encode, self.made.model.eos_ids, gamma) for gamma in (0, *self.gammas)
        ]
        loaded.versions["llama.cpp"] = library.version
        loaded.instruction_sets["llama.cpp"] = library.variant

    def _encode(self, prompt: Prompt) -> list[int]:
        return encoded(prompt, self.made.model.tokenizer)
