"""The whole of a benchmark, from options to a report."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from engine.assembly import Assemble, Assembly, assemble
from engine.bench.crossover import Crossover, find_crossover
from engine.bench.llama_cpp_peer import LlamaCppPeer, llama_cpp_refusal
from engine.bench.loop_peer import LoopPeer
from engine.bench.pace import Peer
from engine.bench.plan import AUTO, BASELINE, NONE, Plan, Variant, parse_gamma
from engine.bench.prompts import SETS, PromptSet, load_prompts
from engine.bench.report import Report, Setting
from engine.bench.roofline import Traffic, copy_bandwidth
from engine.bench.suite import Results, Say, Suite
from engine.bench.synthetic import synthetic, synthetic_prompts
from engine.config import EngineConfig
from engine.device import pick_device
from engine.engine import Engine
from engine.errors import EngineError
from engine.events import Notice, Ready
from engine.footprint import held_memory
from engine.loading import LoadedModel, load_model
from engine.model_store import ModelStore
from engine.presets import DEFAULT_PRESET
from engine.progress import Progress, ignore_progress
from engine.request import Request
from engine.resolve import resolve
from engine.text import encode

PEERS = ("loop", "transformers", "llama.cpp")
DEFAULT_SHAPES = "llama-3.2-3b/llama-3.2-1b"
LARGEST_BATCH = 32
"""That `--crossover` tries, unless a larger one is named."""
_PROMPT_ROOM = 1024
"""Context beside the reply; no shipped prompt is that long."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line offers, as it was given.

    Raises:
        EngineError: options contradict each other, or a value means nothing.
    """

    models: Path
    """The folder of fetched and converted models."""
    command: str
    """As it was typed, for the report."""
    target: str | None = None
    draft: str | None = None
    drafters: tuple[str, ...] = ()
    gammas: tuple[str, ...] = ("4",)
    batches: tuple[int, ...] = (1,)
    temperatures: tuple[float, ...] = (0.0,)
    prompts: tuple[str, ...] = SETS
    limit: int = 4
    """Prompts of each set."""
    max_tokens: int = 64
    passes: int = 3
    dtype: str = "auto"
    device: str = "auto"
    peers: tuple[str, ...] = ()
    crossover: bool = False
    synthetic: float | None = None
    """α of a synthetic pair; None for real models."""
    shape: str | None = None

    def __post_init__(self) -> None:
        for peer in self.peers:
            if peer not in PEERS:
                raise EngineError(f"peer {peer!r} is not known: choose from {', '.join(PEERS)}")
        if self.limit < 1:
            raise EngineError(f"limit is {self.limit}: it must be at least 1")
        if self.synthetic is None and self.shape:
            raise EngineError("--shape goes with --synthetic ALPHA, which makes models of that shape")
        if self.synthetic is not None:
            for name, given in (("--target", self.target), ("--draft", self.draft), ("--peer", self.peers)):
                if given:
                    raise EngineError(f"{name} contradicts --synthetic, which makes its own models: leave one out")

    def plan(self) -> Plan:
        """The cells that these options ask for."""
        return Plan(
            gammas=tuple(parse_gamma(text) for text in self.gammas),
            batches=self.batches,
            temperatures=self.temperatures,
            max_tokens=self.max_tokens,
            passes=self.passes,
        )

    def sets(self) -> list[PromptSet]:
        """The prompts to run."""
        sets = load_prompts(self.prompts) if self.synthetic is None else [synthetic_prompts(self._shapes)]
        return [each.first(self.limit) for each in sets]

    def how_to_assemble(self) -> Assemble:
        """Where the engine gets its models."""
        return assemble if self.synthetic is None else synthetic(self.synthetic, self._shapes)

    @property
    def declaration(self) -> str | None:
        """What a reader of the report must know about synthetic models."""
        if self.synthetic is None:
            return None
        return (
            f"SYNTHETIC: random weights in the shape {self._shapes}, set to agree at {self.synthetic:g} of all tokens. "
            "The work is real, the text is noise."
        )

    @property
    def _shapes(self) -> str:
        return self.shape or DEFAULT_SHAPES


def run(options: Options, say: Say) -> Report:
    """Measure everything that the options ask for.

    Args:
        say: told in one line how far it is.

    Raises:
        EngineError: bad options, or models that cannot be had, loaded or run.
    """
    plan, sets = options.plan(), options.sets()
    largest = max(*plan.batches, LARGEST_BATCH if options.crossover else 1)
    config = EngineConfig(
        target=options.target or DEFAULT_PRESET,
        models=options.models,
        draft=options.draft,
        device=options.device,
        dtype=options.dtype,
        slots=largest,
        context=_PROMPT_ROOM + plan.max_tokens,
    )
    made: list[Assembly] = []
    how = options.how_to_assemble()
    before: list[int | None] = []

    def keep(config: EngineConfig, progress: Progress) -> Assembly:
        from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: F401 code is not what the models hold

        before.append(held_memory(pick_device(config.device)))
        made.append(how(config, progress))
        return made[0]

    engine = Engine(config, keep)
    say("loading")
    engine.start()
    try:
        ready = engine.wait_ready()
        variants = plan.variants(options.drafters, ready)
        notes: list[str] = []
        peers = _peers(options, config, made[0], variants, notes)
        say("measuring the copy bandwidth")
        bandwidth = copy_bandwidth(made[0].target.device)
        suite = Suite(engine, plan, Traffic.of(made[0]), bandwidth, say)
        results, crossovers = _measure(options, suite, variants, sets, peers, largest)
        after = held_memory(made[0].target.device)
        notes += [notice.text for notice in engine.outbox.drain() if isinstance(notice, Notice)]
    finally:
        engine.close()
    return Report(
        command=options.command,
        versions=_versions(),
        setting=_setting(options, ready, bandwidth, None if peers else _between(before[0], after)),
        plan=plan,
        cells=results.cells,
        peers=results.peers,
        crossovers=tuple(crossovers),
        notes=tuple(dict.fromkeys(notes)),
    )


def _measure(
    options: Options,
    suite: Suite,
    variants: Sequence[Variant],
    sets: Sequence[PromptSet],
    peers: Sequence[Peer],
    largest: int,
) -> tuple[Results, list[Crossover]]:
    if not options.crossover:
        return suite.run(variants, sets, peers), []
    if variants == [NONE]:
        raise EngineError("--crossover compares a drafter with none: name one with --drafter")
    return Results((), ()), find_crossover(suite, variants, sets, largest)


def _peers(
    options: Options, config: EngineConfig, made: Assembly, variants: Sequence[Variant], notes: list[str]
) -> list[Peer]:
    """The peers that can take part; notes say why another cannot."""
    if not options.peers:
        return []
    if options.crossover:
        raise EngineError("--peer does not go with --crossover: run the bench twice")
    # A peer cannot be told "auto" in a way that means the same: it gets the fixed draft lengths.
    gammas = sorted({v.gamma for v in variants if v.drafter != BASELINE and v.gamma is not AUTO})
    peers: list[Peer] = []
    if "loop" in options.peers:
        peers.append(LoopPeer(made.model, made.target.cache.slots, made.target.context))
    if "transformers" in options.peers:
        peers += _transformers_peers(config, made, gammas)
    if "llama.cpp" in options.peers:
        refusal = llama_cpp_refusal(config.target)
        if refusal:
            notes.append(refusal)
        else:
            peers += [
                LlamaCppPeer(
                    Path(config.target).expanduser(),
                    config.context,
                    lambda prompt: encode(
                        Request("peer", messages=prompt.messages, prompt_ids=prompt.ids), made.model.tokenizer
                    ),
                    gamma,
                )
                for gamma in (0, *gammas)
            ]
    batches = options.batches
    notes += [f"{peer.name}: {why}" for peer in peers for why in {peer.refusal(batch) for batch in batches} if why]
    return peers


def _transformers_peers(config: EngineConfig, made: Assembly, gammas: Sequence[int]) -> list[Peer]:
    from engine.bench.transformers_peer import TransformersPeer

    target = _again(config.target, config, made.model)
    peers: list[Peer] = [TransformersPeer(target)]
    peers += [TransformersPeer(target, gamma) for gamma in gammas]
    if config.draft is not None and made.draft is not None:
        draft = _again(config.draft, config, made.draft)
        peers += [TransformersPeer(target, gamma, draft) for gamma in gammas]
    return peers


def _again(spec: str, config: EngineConfig, loaded: LoadedModel) -> LoadedModel:
    """A second copy of a model: the engine has changed the attention of its own."""
    folder = resolve(spec, ModelStore(config.models), ignore_progress)
    return load_model(folder, loaded.model.device, loaded.model.dtype, ignore_progress)


def _between(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


def _setting(options: Options, ready: Ready, bandwidth: float, held: int | None) -> Setting:
    return Setting(
        target=ready.target,
        draft=ready.draft,
        synthetic=options.declaration,
        device=ready.device,
        device_name=ready.device_name,
        dtype=ready.dtype,
        threads=torch.get_num_threads(),
        weight_bytes=ready.weight_bytes,
        cache_bytes=ready.cache_bytes,
        held_bytes=held,
        copy_bandwidth=bandwidth,
    )


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in ("specchat", "torch", "transformers", "llama_cpp_python"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions
