"""The evaluation, from options to a report."""

from __future__ import annotations

import time
from collections.abc import Callable

from specchat.engine.config import EngineConfig
from specchat.engine.drafters.none import NoDrafter
from specchat.engine.errors import EngineError, unknown_drafter
from specchat.engine.models.encoder_decoder import require_decoder_only
from specchat.engine.progress import ignore_progress
from specchat.engine.request import Sampling
from specchat.engine.tools.evaluate.course import Course
from specchat.engine.tools.evaluate.drafting import Drafting
from specchat.engine.tools.evaluate.options import EvaluateOptions
from specchat.engine.tools.evaluate.report import Evaluation, Way
from specchat.engine.tools.evaluate.selection import select
from specchat.engine.tools.evaluate.steps import finish
from specchat.engine.tools.evaluate.text_runner import read
from specchat.engine.worker.assembly import Assembly, assemble
from specchat.engine.worker.warm_up import warm_up


def evaluate(options: EvaluateOptions, say: Callable[[str], None]) -> Evaluation:
    """Read the texts with the target, then let every drafter draft along them.

    Args:
        options: of the command.
        say: called with one-line progress messages.

    Raises:
        EngineError: a model cannot be had, a drafter is not known, or no text can be used.
    """
    config = EngineConfig(
        options.target,
        options.models,
        draft=options.draft,
        device=options.device,
        dtype=options.dtype,
        quantize=options.quantize,
        slots=1,
        context=options.context,
    )
    made = assemble(config, ignore_progress)
    require_decoder_only(made.model, "specchat evaluate reads texts with")
    ways = _ways(options, made)
    texts, problems = select(options, made.model.tokenizer, made.target.context)
    warm_up(made)
    drafting = Drafting(made)
    courses: dict[Way, list[Course]] = {way: [] for way in ways}
    sampling, agreed = Sampling(temperature=options.temperature), 0
    reading_s = drafting_s = 0.0
    for number, text in enumerate(texts, 1):
        say(f"text {number} of {len(texts)}: {text.name}")
        reading = finish(read(made.target, text, config.prefill_chunk, sampled=not sampling.greedy))
        agreed += reading.agreed
        reading_s += reading.seconds
        started = time.perf_counter()
        for way in ways:
            courses[way].append(finish(drafting.along(reading, way, sampling)))
        drafting_s += time.perf_counter() - started
    return Evaluation(
        target=made.model.name,
        temperature=options.temperature,
        texts=texts,
        courses=courses,
        agreed=agreed,
        reading_s=reading_s,
        drafting_s=drafting_s,
        problems=problems,
        name=lambda token: str(made.model.tokenizer.decode([token])),
    )


def _ways(options: EvaluateOptions, made: Assembly) -> list[Way]:
    known = [name for name in made.drafters if name != NoDrafter.name]
    for name in options.drafters:
        if name not in known:
            raise EngineError(unknown_drafter(name, known))
    names = options.drafters or known
    return [Way(name, gamma) for name in dict.fromkeys(names) for gamma in dict.fromkeys(options.gammas)]
