"""The whole of a verification, from options to a report."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from engine.assembly import Assembly, assemble
from engine.bench.plan import NONE, Plan, Variant, parse_gamma
from engine.bench.prompts import SETS, Prompt, load_prompts
from engine.bench.runner import reply, request, run_pass, run_requests
from engine.config import EngineConfig
from engine.device import pick_device
from engine.engine import Engine
from engine.errors import EngineError
from engine.events import Event, Ready
from engine.loading import LoadedModel, load_model
from engine.model_store import ModelStore
from engine.presets import DEFAULT_PRESET
from engine.progress import Progress, ignore_progress
from engine.request import Request, Sampling
from engine.resolve import resolve
from engine.text import encode
from engine.verification.greedy import TOLERANCES, check_greedy
from engine.verification.reference import Reference
from engine.verification.report import VerificationReport
from engine.verification.sampled import FALSE_ALARM, TOKENS, Context, check_sampled, choose_context

Say = Callable[[str], None]
SLOTS = 8
"""Samples drawn at once."""
_PROMPT_ROOM = 1024
_SCOUTED_TOKENS = 24
"""Of each reply that is looked through for places to sample at."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line offers, as it was given.

    Raises:
        EngineError: a value is out of range.
    """

    models: Path
    command: str
    target: str | None = None
    draft: str | None = None
    drafters: tuple[str, ...] = ()
    gamma: str = "4"
    prompts: tuple[str, ...] = SETS
    limit: int = 3
    """Prompts of each set."""
    max_tokens: int = 48
    samples: int = 400
    """Per drafter and context."""
    contexts: int = 2
    """Places to sample at, per drafter."""
    temperature: float = 1.0
    seed: int = 0
    dtype: str = "auto"
    device: str = "auto"

    def __post_init__(self) -> None:
        for name, value, least in (
            ("limit", self.limit, 1),
            ("samples", self.samples, 20),
            ("contexts", self.contexts, 1),
        ):
            if value < least:
                raise EngineError(f"{name} is {value}: it must be at least {least}")
        if not self.temperature > 0:
            raise EngineError(f"temperature is {self.temperature:g}: sampling needs one above 0 (0 is checked anyway)")


@dataclass(frozen=True, slots=True)
class Verification:
    """A report, and the tokenizer that its text needs."""

    report: VerificationReport
    tokenizer: Any

    def text(self) -> str:
        """The report for people."""
        return self.report.text(lambda token: str(self.tokenizer.decode([token])))


Prompts = list[tuple[str, list[int]]]
"""Label and tokens of each."""


@dataclass(frozen=True, slots=True)
class _Evidence:
    """What the engine said, gathered before its models are let go."""

    ready: Ready
    tokenizer: Any
    prompts: Prompts
    greedy: dict[Variant, list[list[int]]]
    sampled: list[tuple[Variant, Context, list[list[Event]]]]
    notes: list[str]


def run(options: Options, say: Say) -> Verification:
    """Check everything that the options ask for.

    Args:
        say: told in one line how far it is.

    Raises:
        EngineError: bad options, or models that cannot be had, loaded or run.
    """
    config = EngineConfig(
        target=options.target or DEFAULT_PRESET,
        models=options.models,
        draft=options.draft,
        device=options.device,
        dtype=options.dtype,
        slots=SLOTS,
        context=_PROMPT_ROOM + options.max_tokens,
    )
    evidence = _gather(options, config, say)
    gc.collect()  # the engine's models are let go before the target is loaded once more
    if evidence.ready.device == "cuda":
        torch.cuda.empty_cache()
    say("loading the target once more, as the reference")
    return _judge(options, evidence, _reload(config, evidence.ready))


def _gather(options: Options, config: EngineConfig, say: Say) -> _Evidence:
    made: list[Assembly] = []

    def keep(config: EngineConfig, progress: Progress) -> Assembly:
        made.append(assemble(config, progress))
        return made[0]

    plan = Plan(gammas=(parse_gamma(options.gamma),), max_tokens=max(2, options.max_tokens))
    sets = load_prompts(options.prompts)
    engine = Engine(config, keep)
    say("loading")
    engine.start()
    try:
        ready = engine.wait_ready()
        tokenizer = made[0].model.tokenizer
        variants = plan.variants(options.drafters, ready)
        if variants == [NONE]:
            raise EngineError("nothing drafts here, so there is nothing to verify: name a drafter and a gamma above 0")
        prompts = [
            (f"{each.name} {number}", encode(Request("verify", messages=prompt.messages), tokenizer))
            for each in sets
            for number, prompt in enumerate(each.first(options.limit).prompts, start=1)
        ]
        greedy = {}
        for variant in variants:
            say(f"greedy, {variant.drafter}")
            passed = run_pass(engine, variant, _as_prompts(prompts), 1, Sampling(), plan.max_tokens)
            greedy[variant] = [reply(events) for events in passed]
        sampled, notes = [], []
        for variant in variants:
            if variant != NONE:
                found = _contexts(options, engine, variant, prompts)
                if not found:
                    notes.append(f"{variant.drafter} drafted nothing in these prompts, so it was not sampled.")
                for context in found:
                    say(f"sampling, {variant.drafter}, {context.label}")
                    sampled.append((variant, context, _sample(options, engine, variant, context)))
        return _Evidence(ready, tokenizer, prompts, greedy, sampled, notes)
    finally:
        engine.close()


def _contexts(options: Options, engine: Engine, variant: Variant, prompts: Prompts) -> list[Context]:
    """The places where this drafter is accepted about as often as not."""
    sampling = Sampling(temperature=options.temperature, seed=options.seed)
    passed = run_pass(engine, variant, _as_prompts(prompts), SLOTS, sampling, _SCOUTED_TOKENS)
    found = [choose_context(label, tokens, events) for (label, tokens), events in zip(prompts, passed, strict=True)]
    live = [context for context in found if context is not None]
    return sorted(live, key=lambda context: abs(context.beta - 0.5))[: options.contexts]


def _sample(options: Options, engine: Engine, variant: Variant, context: Context) -> list[list[Event]]:
    requests = [
        request(variant, Prompt(ids=context.tokens), Sampling(temperature=options.temperature, seed=seed), TOKENS)
        for seed in range(options.seed, options.seed + options.samples)
    ]
    return run_requests(engine, requests, SLOTS)


def _judge(options: Options, evidence: _Evidence, target: LoadedModel) -> Verification:
    reference = Reference(target)
    tolerance = TOLERANCES[evidence.ready.dtype]
    threshold = FALSE_ALARM / max(1, len(evidence.sampled))
    plain = evidence.greedy[NONE]
    report = VerificationReport(
        command=options.command,
        target=evidence.ready.target,
        draft=evidence.ready.draft,
        device=evidence.ready.device_name,
        dtype=evidence.ready.dtype,
        gamma=parse_gamma(options.gamma),
        temperature=options.temperature,
        greedy=tuple(
            check_greedy(variant.drafter, evidence.prompts, plain, replies, reference, tolerance)
            for variant, replies in evidence.greedy.items()
        ),
        sampled=tuple(
            check_sampled(variant.drafter, context, replies, reference, target.eos_ids, options.temperature, threshold)
            for variant, context, replies in evidence.sampled
        ),
        notes=tuple(evidence.notes),
    )
    return Verification(report, evidence.tokenizer)


def _as_prompts(prompts: Prompts) -> Sequence[Prompt]:
    return [Prompt(ids=tuple(tokens)) for _, tokens in prompts]


def _reload(config: EngineConfig, ready: Ready) -> LoadedModel:
    folder = resolve(config.target, ModelStore(config.models), ignore_progress)
    dtype = getattr(torch, ready.dtype)
    return load_model(folder, pick_device(config.device), dtype, ignore_progress)
