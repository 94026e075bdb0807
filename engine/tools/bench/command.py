"""The benchmark, from options to a report."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from specchat.engine.device.device import held_memory, pick_device
from specchat.engine.errors import EngineError, check
from specchat.engine.events import Notice
from specchat.engine.kernels.library import library
from specchat.engine.models.packed.load import PackedModel, require_decoder_only
from specchat.engine.request import AUTO, parse_gamma
from specchat.engine.tools.bench.figures import Traffic, copy_bandwidth
from specchat.engine.tools.bench.peers import PEERS, Peers
from specchat.engine.tools.bench.report import BenchReport
from specchat.engine.tools.bench.suite import Plan, Suite, find_crossover, measure_reading
from specchat.engine.tools.bench.synthetic import synthetic, synthetic_prompts
from specchat.engine.tools.prompts import SETS, PromptSet, load_prompts
from specchat.engine.tools.runner import BASELINE, NONE, Say, ToolOptions, choose_variants, require_least, running
from specchat.engine.worker.assembly import Assembly

ALL = "all"
"""Every drafter."""
DEFAULT_SHAPES = "llama-3.2-3b/llama-3.2-1b"
LARGEST_BATCH = 32
"""Largest batch size that `--crossover` tries, unless a larger one is given."""
_SYNTHETIC = """\
SYNTHETIC: random weights in the shape {}, set to agree at {:g} of all tokens. The work is real, the text is noise."""
_PROMPT_ROOM = 1024
"""Context in tokens besides the reply; longer than every shipped prompt."""


@dataclass(frozen=True, kw_only=True)
class BenchOptions(ToolOptions):
    """Options of the command line.

    Raises:
        EngineError: options contradict each other, or a value is unknown.
    """

    command: str
    """The command as typed, for the report."""
    drafters: tuple[str, ...] = (AUTO,)
    """Names of drafters; auto is the default of a chat, all is each of them."""
    gammas: tuple[str, ...] = (AUTO,)
    batches: tuple[int, ...] = (1,)
    temperatures: tuple[float, ...] = (0.0,)
    prompts: tuple[str, ...] = SETS
    limit: int = 4
    """Largest number of prompts per set."""
    max_tokens: int = 64
    passes: int = 3
    peers: tuple[str, ...] = ()
    llama_cpp: Path | None = None
    """Folder that xllamacpp was installed into, for the peer llama.cpp; None for this environment."""
    threads: int | None = None
    """CPU threads of the engine and of its peers; None for torch's own number."""
    prompt_tokens: int | None = None
    """Length of a prompt whose reading speed is measured too; None to skip it."""
    crossover: bool = False
    synthetic: float | None = None
    """α of a synthetic pair; None for real models."""
    shape: str | None = None
    slots: int | None = None
    """Slots of the KV cache; None for the largest batch."""

    def __post_init__(self) -> None:
        for peer in self.peers:
            check(peer in PEERS, f"peer {peer!r} is not known: choose from {', '.join(PEERS)}")
        require_least(limit=(self.limit, 1), threads=(self.threads, 1), prompt_tokens=(self.prompt_tokens, 2))
        if self.slots is not None and self.slots < max(self.batches):
            raise EngineError(f"slots is {self.slots}: a batch of {max(self.batches)} needs as many")
        check(not (self.peers and self.crossover), "--peer does not go with --crossover: run the bench twice")
        if self.llama_cpp is not None and not self.llama_cpp.expanduser().is_dir():
            raise EngineError(f"there is no folder {self.llama_cpp}: --llama-cpp takes the folder that has xllamacpp")
        if self.synthetic is None and self.shape:
            raise EngineError("--shape goes with --synthetic ALPHA, which makes models of that shape")
        if self.synthetic is not None:
            for name, given in (("--target", self.target), ("--draft", self.draft), ("--peer", self.peers)):
                check(not given, f"{name} contradicts --synthetic, which makes its own models: leave one out")

    @property
    def shapes(self) -> str:
        """Model shapes of a synthetic pair."""
        return self.shape or DEFAULT_SHAPES


def run(options: BenchOptions, say: Say) -> BenchReport:
    """Run the benchmark.

    Args:
        say: called with one-line progress messages.

    Raises:
        EngineError: bad options, or models that cannot be fetched, loaded or run.
    """
    gammas = tuple(parse_gamma(text) for text in options.gammas)
    plan = Plan(gammas, options.batches, options.temperatures, options.max_tokens, options.passes)
    sets = load_prompts(options.prompts) if options.synthetic is None else [synthetic_prompts(options.shapes)]
    for each in sets:
        free = not any(prompt.constraint for prompt in each.prompts)
        check(
            free or set(options.peers) <= {"llama.cpp"},
            f"--prompts {each.name} compares with --peer llama.cpp alone: others follow no schemas",
        )
    before = torch.get_num_threads()
    torch.set_num_threads(options.threads or before)
    try:
        return _run(options, plan, [each.first(options.limit) for each in sets], say)
    finally:
        torch.set_num_threads(before)


def _run(options: BenchOptions, plan: Plan, sets: Sequence[PromptSet], say: Say) -> BenchReport:
    # Imports that `held_memory` is not to count.
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: F401

    largest = max(*plan.batches, (options.slots or LARGEST_BATCH) if options.crossover else 1)
    context = options.context or max(_PROMPT_ROOM, options.prompt_tokens or 0) + plan.max_tokens
    config = options.config(slots=options.slots or largest, context=context, seed=plan.seed)
    load = None if options.synthetic is None else synthetic(options.synthetic, options.shapes)
    say("loading")
    before = held_memory(pick_device(config.device))
    with running(config, load) as (engine, ready, made):
        variants = choose_variants(() if ALL in options.drafters else options.drafters, plan.gammas, ready)
        if not ready.conversations:
            sets = [each.as_texts(made.model.tokenizer) for each in sets]
        if options.peers:
            require_decoder_only(made.model, "--peer compares programs that run")
        # Peers have no equivalent of γ "auto": they get the fixed draft lengths.
        gammas = sorted({v.gamma for v in variants if v.drafter != BASELINE and v.gamma is not None})
        peers = Peers(options.peers, config, made, gammas, options.batches, options.llama_cpp)
        say("measuring the copy bandwidth")
        suite = Suite(engine, plan, Traffic.of(made), copy_bandwidth(made.target.device), say)
        if options.crossover and variants == [NONE]:
            raise EngineError("--crossover compares a drafter with none: name one with --drafter")
        crossovers = find_crossover(suite, variants, sets, largest) if options.crossover else []
        cells, peer_cells = suite.run(variants, [] if options.crossover else sets, peers.peers)
        known = {token for each in sets for prompt in each.prompts for token in prompt.encode(made.model.tokenizer)}
        length = options.prompt_tokens
        readings = measure_reading(suite, variants, peers.peers, length, sorted(known)) if length else []
        after = held_memory(made.target.device)
        setting = {
            "target": ready.target,
            "draft": ready.draft,
            "synthetic": load and _SYNTHETIC.format(options.shapes, options.synthetic),
            **{name: getattr(ready, name) for name in ("device", "device_name", "dtype")},
            "threads": torch.get_num_threads(),
            "weight_bytes": ready.weight_bytes,
            "cache_bytes": ready.cache_bytes,
            "held_bytes": None if peers.peers or before is None or after is None else after - before,
            "copy_bandwidth": suite.bandwidth,
            "instruction_sets": _instruction_sets(made) | peers.instruction_sets,
        }
        notices = [notice.text for notice in engine.outbox.drain() if isinstance(notice, Notice)]
    return BenchReport(
        command=options.command,
        versions=_versions() | peers.versions,
        setting=setting,
        plan=plan,
        cells=tuple(cells),
        peers=tuple(peer_cells),
        readings=tuple(readings),
        crossovers=tuple(crossovers),
        notes=tuple(dict.fromkeys([*peers.notes, *notices])),
    )


def _instruction_sets(made: Assembly) -> dict[str, str]:
    """Instruction sets of the target's matrix products on the CPU."""
    if made.model.device.type != "cpu":
        return {}
    packed = isinstance(made.model, PackedModel)
    return {"specchat": library().variant if packed else f"torch's {torch.backends.cpu.get_cpu_capability()}"}


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in ("specchat", "torch", "transformers"):
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions
