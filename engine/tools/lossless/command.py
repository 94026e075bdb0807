"""The lossless checks, from options to a report."""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from specchat.engine.config import EngineConfig
from specchat.engine.device.device import pick_device
from specchat.engine.engine import Engine
from specchat.engine.errors import EngineError
from specchat.engine.events import Event, Ready
from specchat.engine.models.load import load_model
from specchat.engine.models.packed.load import PackedModel, load_dequantized, require_decoder_only
from specchat.engine.models.resolve import resolve
from specchat.engine.models.store import ModelStore
from specchat.engine.progress import ignore_progress
from specchat.engine.request import check_gamma, parse_gamma
from specchat.engine.settings import Sampling
from specchat.engine.tools import runner
from specchat.engine.tools.lossless import checks
from specchat.engine.tools.lossless.report import VerificationReport
from specchat.engine.tools.prompts import SETS, Prompt, load_prompts
from specchat.engine.worker.obtain import obtain_model

SLOTS = 8
"""Requests run at once."""
CONTEXTS = 2
_PROMPT_ROOM = 1024
_SEARCHED_TOKENS = 24
"""Tokens of each reply that is searched for contexts to sample at."""


@dataclass(frozen=True, kw_only=True)
class LosslessOptions(runner.ToolOptions):
    """Options of the command line.

    Raises:
        EngineError: a value is out of range.
    """

    command: str
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
    slots: int = SLOTS
    """Requests that run at once."""

    def __post_init__(self) -> None:
        runner.require_least(limit=(self.limit, 1), samples=(self.samples, 20), contexts=(self.places, 1))
        if not self.temperature > 0:
            raise EngineError(f"temperature is {self.temperature:g}: sampling needs one above 0 (0 is checked anyway)")

    @property
    def places(self) -> int:
        """Contexts to sample at, per drafter."""
        return min(CONTEXTS, self.limit) if self.contexts is None else self.contexts


@dataclass(slots=True)
class _Evidence:
    """Replies of the engine, collected before its models are released."""

    ready: Ready
    tokenizer: Any
    prompts: list[tuple[str, list[int]]]
    """Label and token ids of each prompt."""
    greedy: dict[runner.Variant, list[list[int]]] = field(default_factory=dict)
    sampled: list[tuple[runner.Variant, checks.Context, list[list[Event]]]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    stopped: bool = False
    """Whether ctrl+c ended it before everything was collected or checked."""

    @property
    def ids(self) -> list[Prompt]:
        """The prompts as token ids."""
        return [Prompt(ids=tuple(tokens)) for _, tokens in self.prompts]

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """Let ctrl+c end the work inside. Before the replies without drafts are complete it ends the program."""
        try:
            yield
        except KeyboardInterrupt:
            if runner.NONE not in self.greedy:
                raise
            self.stopped = True


def run(options: LosslessOptions, say: runner.Say) -> VerificationReport:
    """Run the checks. Once the replies without drafts are complete, ctrl+c ends it with what is finished.

    Args:
        say: called with one-line progress messages.

    Raises:
        EngineError: bad options, or models that cannot be fetched, loaded or run.
    """
    context = options.context or _PROMPT_ROOM + options.max_tokens
    config = options.config(slots=options.slots, context=context, seed=options.seed)
    evidence = _gather(options, config, say)
    gc.collect()  # release the engine's models before the target is loaded again
    if evidence.ready.device == "cuda":
        torch.cuda.empty_cache()
    say("loading the target once more, as the reference")
    return _judge(options, config, evidence, say)


def _gather(options: LosslessOptions, config: EngineConfig, say: runner.Say) -> _Evidence:
    """Let the engine reply, greedy and sampled."""
    gamma = parse_gamma(options.gamma)
    check_gamma(gamma)
    sets = load_prompts(options.prompts)
    say("loading")
    with runner.running(config) as (engine, ready, made):
        require_decoder_only(made.model, "specchat verify checks")
        variants = runner.choose_variants(options.drafters, [gamma], ready)
        if variants == [runner.NONE]:
            raise EngineError("nothing drafts here, so there is nothing to verify: name a drafter and a gamma above 0")
        tokenizer = made.model.tokenizer
        prompts = [
            (f"{each.name} {number}", prompt.encode(tokenizer))
            for each in sets
            for number, prompt in enumerate(each.first(options.limit).prompts, start=1)
        ]
        evidence = _Evidence(ready, tokenizer, prompts)
        with evidence.stoppable():
            for variant in variants:
                say(f"greedy, {variant.drafter}")
                passed = runner.run_pass(engine, variant, evidence.ids, 1, Sampling(), max(2, options.max_tokens))
                evidence.greedy[variant] = [runner.reply_tokens(events) for events in passed]
            for variant in variants[1:]:
                _sample(options, engine, variant, evidence, say)
    return evidence


def _sample(
    options: LosslessOptions, engine: Engine, variant: runner.Variant, evidence: _Evidence, say: runner.Say
) -> None:
    """Sample at contexts at which this drafter is accepted about half of the time."""
    say(f"looking for places to sample at, {variant.drafter}")
    sampling = Sampling(temperature=options.temperature)
    passed = runner.run_pass(engine, variant, evidence.ids, options.slots, sampling, _SEARCHED_TOKENS)
    found = [checks.choose_context(*prompt, events) for prompt, events in zip(evidence.prompts, passed, strict=True)]
    contexts = sorted((each for each in found if each is not None), key=lambda context: abs(context.beta - 0.5))
    if not contexts:
        evidence.notes.append(f"{variant.drafter} drafted nothing in these prompts, so it was not sampled.")
    for context in contexts[: options.places]:
        say(f"sampling, {variant.drafter}, {context.label}")
        prompts = [Prompt(ids=context.tokens)] * options.samples
        samples = runner.run_pass(engine, variant, prompts, options.slots, sampling, checks.TOKENS)
        evidence.sampled.append((variant, context, samples))


def _judge(options: LosslessOptions, config: EngineConfig, evidence: _Evidence, say: runner.Say) -> VerificationReport:
    """Check the replies against the reference."""
    eos, scores, tolerance, fidelity = _reload(config, evidence)
    threshold = checks.FALSE_ALARM / max(1, len(evidence.sampled))
    plain = evidence.greedy[runner.NONE]
    greedy, sampled = [], []
    with evidence.stoppable():
        for variant, replies in evidence.greedy.items():
            say(f"checking the greedy replies, {variant.drafter}")
            greedy.append(checks.check_greedy(variant.drafter, evidence.prompts, plain, replies, scores, tolerance))
        for variant, context, samples in evidence.sampled:
            say(f"checking the samples, {variant.drafter}, {context.label}")
            how = (scores, eos, options.temperature, threshold)
            sampled.append(checks.check_sampled(variant.drafter, context, samples, *how))
    ready = evidence.ready
    return VerificationReport(
        {
            "command": options.command,
            "target": ready.target,
            "draft": ready.draft,
            "device": ready.device_name,
            "dtype": ready.dtype,
            "gamma": parse_gamma(options.gamma),
            "temperature": options.temperature,
        },
        tuple(greedy),
        tuple(sampled),
        tuple(evidence.notes),
        fidelity,
        evidence.stopped,
        evidence.tokenizer.decode,
    )


def _reload(
    config: EngineConfig, evidence: _Evidence
) -> tuple[Collection[int], checks.Reference, float, checks.Fidelity | None]:
    """EOS token ids of the target, the reference of the checks, ε, and how far quantised weights are from float32."""
    device, store, dtype = pick_device(config.device), ModelStore(config.models), evidence.ready.dtype
    if dtype in checks.TOLERANCES:
        folder = resolve(config.target, store, ignore_progress).folder()
        loaded = load_model(folder, device, getattr(torch, dtype), ignore_progress)
        return loaded.eos_ids, checks.model_reference(loaded), checks.TOLERANCES[dtype], None
    packed = obtain_model(config.target, config, device, ignore_progress).model
    if not isinstance(packed, PackedModel):  # quantised layers in modelling code of transformers
        return packed.eos_ids, checks.model_reference(packed), checks.BY_CODES, None
    scores, fidelity = checks.quantized_reference(packed, evidence.ready.context), None
    if not evidence.stopped:  # measuring the fidelity loads another model
        dequantized = load_dequantized(packed, resolve(config.target, store, ignore_progress).folder(), ignore_progress)
        replies = zip(evidence.prompts, evidence.greedy[runner.NONE], strict=True)
        texts = [(tokens, reply) for (_, tokens), reply in replies]
        fidelity = checks.measure_fidelity(packed.format, texts, scores, checks.model_reference(dequantized))
    return packed.eos_ids, scores, checks.EXACT, fidelity
