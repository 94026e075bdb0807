"""Two drafters along one reply, token by token, on a running engine."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from specchat.engine.engine import Engine
from specchat.engine.errors import EngineError, unknown_drafter
from specchat.engine.request import Request
from specchat.engine.sequence.detokenizer import Detokenizer
from specchat.engine.sequence.prompt import encode
from specchat.engine.tools.evaluate.figures import Figures
from specchat.engine.tools.evaluate.rounds import Course, Drafting, Place, Way
from specchat.engine.tools.evaluate.text_runner import read
from specchat.engine.tools.evaluate.texts import Text
from specchat.engine.worker.assembly import Assembly

OTHER_PROMPT = "it cannot be read: the model, the template or an earlier message has changed since this reply was made"

MOST_SAMPLED = 500
"""Most tokens of a sampled reply that are read: the target's logits are kept for each."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """Predictions of two drafters for every token of a reply."""

    temperature: float
    """Temperature that the reply was sampled at; 0 for greedy."""
    figures: tuple[Figures, Figures]
    """Of each drafter, over the reply."""
    places: tuple[Sequence[Place], Sequence[Place]]
    """Of each drafter, one for each token of the reply."""
    names: Mapping[int, str]
    """Text of every proposed token."""


def align(
    engine: Engine, request: Request, reply: Sequence[int], prompt_tokens: int, drafters: tuple[str, str], gamma: int
) -> Future[Alignment]:
    """Read a reply with the target of a running engine, then let two drafters draft along it, between its rounds.

    Args:
        engine: engine with loaded models.
        request: prompt and sampling of the reply.
        reply: token ids.
        prompt_tokens: length of the prompt when the reply was made.
        drafters: names of two drafters.
        gamma: draft length.

    Returns:
        The alignment; an `EngineError` if the engine lacks a drafter or the prompt has changed.
    """

    def work(made: Assembly, slot: int) -> Generator[None, None, Alignment]:
        for name in drafters:
            if name not in made.drafters:
                raise EngineError(unknown_drafter(name, made.drafters))
        prompt = encode(request, made.model.tokenizer)
        if len(prompt) != prompt_tokens:
            raise EngineError(OTHER_PROMPT)
        sampling = request.sampling
        room = max(made.target.context - len(prompt) - 1, 0)
        if not sampling.greedy:
            room = min(room, MOST_SAMPLED)
        text = Text("this reply", "", tuple(prompt), tuple(reply[:room]))
        if not text.reply:
            raise EngineError("it cannot be read: it has no token")
        reading = yield from read(
            made.target, text, engine.config.prefill_chunk, sampled=not sampling.greedy, slot=slot
        )
        drafting = Drafting(made)
        one = yield from drafting.along(reading, Way(drafters[0], gamma), sampling)
        other = yield from drafting.along(reading, Way(drafters[1], gamma), sampling)
        named = Detokenizer(made.model.tokenizer, ())
        return Alignment(
            temperature=0.0 if sampling.greedy else sampling.temperature,
            figures=(Figures.of(drafters[0], gamma, "", [one]), Figures.of(drafters[1], gamma, "", [other])),
            places=(one.places, other.places),
            names={token: named.name(token) for token in _offered(one, other)},
        )

    return engine.borrow(work)


def _offered(*courses: Course) -> set[int]:
    """Every proposed token."""
    return {token for course in courses for place in course.places for token in place.offered}
