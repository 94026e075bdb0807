"""What the rounds of one drafter along a sampled text are expected to be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence

from specchat.engine.decoding.planner import Planner
from specchat.engine.decoding.round import run_round
from specchat.engine.decoding.verify.verifier import Verifier
from specchat.engine.request import Request
from specchat.engine.tools.evaluate.course import Course, begun, read_prompt
from specchat.engine.tools.evaluate.place import places_of
from specchat.engine.tools.evaluate.text_runner import Reading, TextRunner


def expect(
    runner: TextRunner, reading: Reading, planner: Planner, verifier: Verifier, request: Request, gamma: int
) -> Generator[None, None, Course]:
    """Draft for every place of a text, one position each, and judge the drafts by the target's own distributions.

    A step is a place. β of one is Σ min(p, q), of several tokens offered the chance that one of them is accepted; no
    draw decides. A round is taken to go on with chance β from place to place, up to γ of them (Leviathan et al. 2023,
    section 3.1, with each place's own β): what a drafter says behind its own drafts is taken to be what it says behind
    the text.

    Args:
        runner: answers with what was read.
        reading: of the text, with its logits.
        planner: with the drafter that the request names.
        verifier: judges drafts.
        request: its prompt, its length and its temperature are the text's, its γ is 1.
        gamma: γ of the rounds that are expected.
    """
    text = reading.text
    course = Course(text.category, pass_s=reading.pass_s, emitted=len(text.reply))
    with begun(runner, reading, planner, request) as row:
        yield from read_prompt(row, reading, planner)
        for token in text.reply:
            plan, (outcome,), timing = run_round(runner, [row], planner, verifier)
            row.cached += 1
            row.tokens.append(token)
            planner.drafters.on_accepted(row, [token])
            if outcome.beta:
                course.tested[0] += 1
            course.places += places_of(outcome, [token])
            if row.rounds:
                course.draft_s += timing.draft
                course.timed_steps += plan.steps
            row.rounds += 1
            yield
    betas = [place.beta for place in course.places]
    course.accepted[0] = sum(betas)
    course.rounds = _rounds(betas, gamma)
    course.lengths = Counter({gamma: round(course.rounds)})
    return course


def _rounds(betas: Sequence[float], gamma: int) -> float:
    """How many rounds a text is expected to take, of L places with these chances to go on."""
    starts = [0.0] * (len(betas) + gamma + 1)
    starts[0] = 1.0
    for place in range(len(betas)):
        chance = starts[place]
        for depth in range(gamma):
            beta = betas[place + depth] if place + depth < len(betas) else 0.0
            starts[place + depth + 1] += chance * (1 - beta)
            chance *= beta
        starts[place + gamma + 1] += chance
    return sum(starts[: len(betas)])
