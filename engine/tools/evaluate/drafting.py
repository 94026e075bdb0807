"""The drafters of an engine along texts that its target has read."""

from __future__ import annotations

from collections.abc import Generator
from typing import NoReturn

from specchat.engine.decoding.planner import Planner
from specchat.engine.decoding.verify.verifier import Verifier
from specchat.engine.errors import EngineError
from specchat.engine.request import Request, Sampling
from specchat.engine.sampling.penalties import Penalties
from specchat.engine.sequence.sequence import SequenceState
from specchat.engine.tools.evaluate.course import Course, follow
from specchat.engine.tools.evaluate.expectation import expect
from specchat.engine.tools.evaluate.report import Way
from specchat.engine.tools.evaluate.text_runner import Reading, TextRunner
from specchat.engine.worker.assembly import Assembly


class Drafting:
    """Drafts along texts, each drafter as in generation.

    Args:
        made: models and drafters.
    """

    def __init__(self, made: Assembly) -> None:
        self._runner = TextRunner(made.target)
        self._planner = Planner(made.drafters, self._runner, _fail)
        penalties = Penalties(made.target.cache.slots, made.target.context, made.target.device)
        self._verifier = Verifier(self._runner, penalties)

    def along(self, reading: Reading, way: Way, sampling: Sampling) -> Generator[None, None, Course]:
        """The rounds of one drafter along a text whose tokens were chosen like this, one or a chunk of reading a step.

        Raises:
            EngineError: the drafter fails.
        """
        text, sampled = reading.text, not sampling.greedy
        request = Request(
            text.name,
            prompt_ids=text.prompt,
            drafter=way.drafter,
            gamma=1 if sampled else way.gamma,
            max_tokens=len(text.reply) + sampled,  # the last place is drafted for too
            sampling=sampling,
        )
        if sampled:
            return expect(self._runner, reading, self._planner, self._verifier, request, way.gamma)
        return follow(self._runner, reading, self._planner, request)


def _fail(row: SequenceState, error: Exception) -> NoReturn:
    raise EngineError(f"the {row.drafter} drafter failed on {row.request.request_id}: {error}") from error
