"""The lossless checks, from options to a report."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from specchat.engine.config import EngineConfig
from specchat.engine.device.device import pick_device
from specchat.engine.engine import Engine
from specchat.engine.errors import EngineError
from specchat.engine.events import Event, Ready
from specchat.engine.models.catalog import DEFAULT_PRESET
from specchat.engine.models.encoder_decoder import require_decoder_only
from specchat.engine.models.load import load_model
from specchat.engine.models.packed.dequantize import load_dequantized
from specchat.engine.models.packed.load import PackedModel
from specchat.engine.models.resolve import resolve
from specchat.engine.models.store import ModelStore
from specchat.engine.progress import Progress, ignore_progress
from specchat.engine.request import Request, Sampling, parse_gamma
from specchat.engine.sequence.prompt import encode
from specchat.engine.tools.bench.plan import NONE, Plan, Variant
from specchat.engine.tools.bench.prompts import SETS, Prompt, load_prompts
from specchat.engine.tools.bench.runner import reply, request, run_pass, run_requests
from specchat.engine.tools.lossless.greedy import BY_CODES, EXACT, TOLERANCES, GreedyCheck, check_greedy
from specchat.engine.tools.lossless.quantization import Fidelity, QuantizedReference, measure_fidelity
from specchat.engine.tools.lossless.reference import Reference, Scorer
from specchat.engine.tools.lossless.report import VerificationReport
from specchat.engine.tools.lossless.sampled import (
    FALSE_ALARM,
    TOKENS,
    Context,
    SampledCheck,
    check_sampled,
    choose_context,
)
from specchat.engine.worker.assembly import Assembly, assemble
from specchat.engine.worker.obtain import obtain_model

Say = Callable[[str], None]
SLOTS = 8
"""Requests run at once."""
CONTEXTS = 2
_PROMPT_ROOM = 1024
_SCOUTED_TOKENS = 24
"""Tokens of each reply that is searched for contexts to sample at."""


@dataclass(frozen=True, slots=True)
class LosslessOptions:
    """Options of the command line.

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
    """Largest number of prompts per set."""
    max_tokens: int = 48
    samples: int = 400
    """Samples per drafter and context."""
    contexts: int | None = None
    """Contexts to sample at, per drafter; None for `CONTEXTS`, or `limit` if that is less."""
    temperature: float = 1.0
    seed: int = 0
    dtype: str = "auto"
    quantize: str = "auto"
    device: str = "auto"
    slots: int = SLOTS
    """Requests that run at once."""
    context: int | None = None
    """Tokens of a slot; None for as many as prompts and replies need."""

    def __post_init__(self) -> None:
        for name, value, least in (
            ("limit", self.limit, 1),
            ("samples", self.samples, 20),
            ("contexts", self.places, 1),
        ):
            if value < least:
                raise EngineError(f"{name} is {value}: it must be at least {least}")
        if not self.temperature > 0:
            raise EngineError(f"temperature is {self.temperature:g}: sampling needs one above 0 (0 is checked anyway)")

    @property
    def places(self) -> int:
        """Contexts to sample at, per drafter."""
        return min(CONTEXTS, self.limit) if self.contexts is None else self.contexts


@dataclass(frozen=True, slots=True)
class Verification:
    """A report with the tokenizer that its text needs."""

    report: VerificationReport
    tokenizer: Any

    def text(self) -> str:
        """The report as text."""
        return self.report.text(lambda token: str(self.tokenizer.decode([token])))


Prompts = list[tuple[str, list[int]]]
"""Label and token ids of each prompt."""


@dataclass(frozen=True, slots=True)
class _Evidence:
    """Replies of the engine, collected before its models are released."""

    ready: Ready
    tokenizer: Any
    prompts: Prompts
    greedy: dict[Variant, list[list[int]]]
    sampled: list[tuple[Variant, Context, list[list[Event]]]]
    notes: list[str]
    stopped: bool
    """Whether ctrl+c ended it before everything was collected."""


def run(options: LosslessOptions, say: Say) -> Verification:
    """Run the checks. Once the replies without drafts are there, ctrl+c ends it with what is finished.

    Args:
        say: called with one-line progress messages.

    Raises:
        EngineError: bad options, or models that cannot be fetched, loaded or run.
    """
    config = EngineConfig(
        target=options.target or DEFAULT_PRESET,
        models=options.models,
        draft=options.draft,
        device=options.device,
        dtype=options.dtype,
        quantize=options.quantize,
        slots=options.slots,
        context=options.context or _PROMPT_ROOM + options.max_tokens,
    )
    evidence = _gather(options, config, say)
    gc.collect()  # release the engine's models before the target is loaded again
    if evidence.ready.device == "cuda":
        torch.cuda.empty_cache()
    say("loading the target once more, as the reference")
    return _judge(options, evidence, *_reload(config, evidence), say)


def _gather(options: LosslessOptions, config: EngineConfig, say: Say) -> _Evidence:
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
        require_decoder_only(made[0].model, "specchat verify checks")
        tokenizer = made[0].model.tokenizer
        variants = plan.variants(options.drafters, ready)
        if variants == [NONE]:
            raise EngineError("nothing drafts here, so there is nothing to verify: name a drafter and a gamma above 0")
        prompts = [
            (f"{each.name} {number}", encode(Request("verify", messages=prompt.messages), tokenizer))
            for each in sets
            for number, prompt in enumerate(each.first(options.limit).prompts, start=1)
        ]
        evidence = _Evidence(ready, tokenizer, prompts, greedy={}, sampled=[], notes=[], stopped=False)
        try:
            _collect(options, engine, variants, plan, evidence, say)
        except KeyboardInterrupt:
            if NONE not in evidence.greedy:
                raise
            evidence = replace(evidence, stopped=True)
        return evidence
    finally:
        engine.close()


def _collect(
    options: LosslessOptions, engine: Engine, variants: Sequence[Variant], plan: Plan, evidence: _Evidence, say: Say
) -> None:
    """Add the replies of each variant to the evidence as they are finished."""
    for variant in variants:
        say(f"greedy, {variant.drafter}")
        passed = run_pass(engine, variant, _as_prompts(evidence.prompts), 1, Sampling(), plan.max_tokens)
        evidence.greedy[variant] = [reply(events) for events in passed]
    for variant in variants:
        if variant != NONE:
            say(f"looking for places to sample at, {variant.drafter}")
            found = _contexts(options, engine, variant, evidence.prompts)
            if not found:
                evidence.notes.append(f"{variant.drafter} drafted nothing in these prompts, so it was not sampled.")
            for context in found:
                say(f"sampling, {variant.drafter}, {context.label}")
                evidence.sampled.append((variant, context, _sample(options, engine, variant, context)))


def _contexts(options: LosslessOptions, engine: Engine, variant: Variant, prompts: Prompts) -> list[Context]:
    """Contexts at which this drafter is accepted about half of the time."""
    sampling = Sampling(temperature=options.temperature, seed=options.seed)
    passed = run_pass(engine, variant, _as_prompts(prompts), options.slots, sampling, _SCOUTED_TOKENS)
    found = [choose_context(label, tokens, events) for (label, tokens), events in zip(prompts, passed, strict=True)]
    live = [context for context in found if context is not None]
    return sorted(live, key=lambda context: abs(context.beta - 0.5))[: options.places]


def _sample(options: LosslessOptions, engine: Engine, variant: Variant, context: Context) -> list[list[Event]]:
    requests = [
        request(variant, Prompt(ids=context.tokens), Sampling(temperature=options.temperature, seed=seed), TOKENS)
        for seed in range(options.seed, options.seed + options.samples)
    ]
    return run_requests(engine, requests, options.slots)


def _judge(
    options: LosslessOptions,
    evidence: _Evidence,
    eos: Collection[int],
    reference: Scorer,
    fidelity: Fidelity | None,
    say: Say,
) -> Verification:
    of_codes = EXACT if isinstance(reference, QuantizedReference) else BY_CODES
    tolerance = TOLERANCES.get(evidence.ready.dtype, of_codes)
    threshold = FALSE_ALARM / max(1, len(evidence.sampled))
    plain = evidence.greedy[NONE]
    greedy: list[GreedyCheck] = []
    sampled: list[SampledCheck] = []
    stopped = evidence.stopped
    try:
        for variant, replies in evidence.greedy.items():
            say(f"checking the greedy replies, {variant.drafter}")
            greedy.append(check_greedy(variant.drafter, evidence.prompts, plain, replies, reference, tolerance))
        for variant, context, found in evidence.sampled:
            say(f"checking the samples, {variant.drafter}, {context.label}")
            sampled.append(
                check_sampled(variant.drafter, context, found, reference, eos, options.temperature, threshold)
            )
    except KeyboardInterrupt:
        stopped = True
    report = VerificationReport(
        command=options.command,
        target=evidence.ready.target,
        draft=evidence.ready.draft,
        device=evidence.ready.device_name,
        dtype=evidence.ready.dtype,
        gamma=parse_gamma(options.gamma),
        temperature=options.temperature,
        greedy=tuple(greedy),
        sampled=tuple(sampled),
        notes=tuple(evidence.notes),
        fidelity=fidelity,
        stopped=stopped,
    )
    return Verification(report, evidence.tokenizer)


def _as_prompts(prompts: Prompts) -> Sequence[Prompt]:
    return [Prompt(ids=tuple(tokens)) for _, tokens in prompts]


def _reload(config: EngineConfig, evidence: _Evidence) -> tuple[Collection[int], Scorer, Fidelity | None]:
    """The target's end tokens, what the engine is judged by, and how far quantised weights are from float32."""
    device, store = pick_device(config.device), ModelStore(config.models)
    if evidence.ready.dtype in TOLERANCES:
        dtype = getattr(torch, evidence.ready.dtype)
        loaded = load_model(resolve(config.target, store, ignore_progress), device, dtype, ignore_progress)
        return loaded.eos_ids, Reference(loaded), None
    packed = obtain_model(config.target, config, device, ignore_progress).model
    if not isinstance(packed, PackedModel):  # quantised layers in modelling code of transformers
        return packed.eos_ids, Reference(packed), None
    reference = QuantizedReference(packed, config.context)
    if evidence.stopped:  # how far the weights are from float32 takes another model to load
        return packed.eos_ids, reference, None
    dequantized = load_dequantized(packed, resolve(config.target, store, ignore_progress), ignore_progress)
    texts = [(tokens, reply) for (_, tokens), reply in zip(evidence.prompts, evidence.greedy[NONE], strict=True)]
    return packed.eos_ids, reference, measure_fidelity(packed.format, texts, reference, Reference(dequantized))
