"""The evaluation, from options to a report."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NoReturn

from specchat.engine.config import EngineConfig
from specchat.engine.errors import EngineError
from specchat.engine.models.encoder_decoder import require_decoder_only
from specchat.engine.progress import ignore_progress
from specchat.engine.request import Request, Sampling
from specchat.engine.runner.quantized_runner import QuantizedRunner
from specchat.engine.sampling.penalties import Penalties
from specchat.engine.sequence.sequence import SequenceState
from specchat.engine.speculation.drafters.none import NoDrafter
from specchat.engine.speculation.planner import Planner
from specchat.engine.speculation.verify.verifier import Verifier
from specchat.engine.tools.evaluate.course import Course, follow
from specchat.engine.tools.evaluate.expectation import expect
from specchat.engine.tools.evaluate.options import EvaluateOptions
from specchat.engine.tools.evaluate.report import Evaluation, Way
from specchat.engine.tools.evaluate.selection import select
from specchat.engine.tools.evaluate.text_runner import TextRunner, read
from specchat.engine.worker.assembly import Assembly, assemble, warm_up
from specchat.engine.worker.plain_passes import time_wider_passes


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
    runner = TextRunner(made.target)
    planner = Planner(made.drafters, runner, _fail)
    if isinstance(made.target, QuantizedRunner):  # what rides in a pass is judged by what passes cost
        planner.learn_costs(time_wider_passes(made.target))
    verifier = Verifier(runner, Penalties(made.target.cache.slots, made.target.context, made.target.device))
    courses: dict[Way, list[Course]] = {way: [] for way in ways}
    sampled, agreed = options.temperature > 0, 0
    reading_s = drafting_s = 0.0
    for number, text in enumerate(texts, 1):
        say(f"text {number} of {len(texts)}: {text.name}")
        reading = read(made.target, text, config.prefill_chunk, sampled=sampled)
        agreed += reading.agreed
        reading_s += reading.seconds
        started = time.perf_counter()
        for way in ways:
            request = Request(
                text.name,
                prompt_ids=text.prompt,
                drafter=way.drafter,
                gamma=1 if sampled else way.gamma,
                max_tokens=len(text.reply) + sampled,  # the last place is drafted for too
                sampling=Sampling(temperature=options.temperature),
            )
            if sampled:
                course = expect(runner, reading, planner, verifier, request, way.gamma)
            else:
                course = follow(runner, reading, planner, request)
            courses[way].append(course)
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
            raise EngineError(f"drafter {name!r} is not there: choose one of {', '.join(known)}")
    names = options.drafters or known
    return [Way(name, gamma) for name in dict.fromkeys(names) for gamma in dict.fromkeys(options.gammas)]


def _fail(row: SequenceState, error: Exception) -> NoReturn:
    raise EngineError(f"the {row.drafter} drafter failed on {row.request.request_id}: {error}") from error
