"""Replies of a model that thinks, made of the tokens of a recorded one: no small model at hand thinks."""

from collections.abc import Iterator
from dataclasses import replace

from specchat.app.sources.observed import unmarked
from specchat.engine import Admitted, Fate, Ready, Record, Round, Thinking
from tests.app.recorded import trace

MARKERS = Thinking("<think>", "</think>", False)
THOUGHT = 38
"""Rounds of thinking at the beginning of each reply."""


def thinking_trace(*, markers: Thinking = MARKERS, marked: bool = False) -> list[Record]:
    """A recorded reply whose first rounds are thinking: `<think>` before them, `</think>` after them.

    Args:
        markers: Of the replies; one that the prompt has begun has no opening marker.
        marked: Whether the markers are in the text, as in records of earlier versions.
    """
    made: list[Record] = []
    for record in trace():
        match record:
            case Ready():
                made.append(replace(record, thinking_switch=True, template_words=("/hush",)))
            case Admitted():
                made.append(replace(record, thinking=markers))
            case Round():
                made += _marked(record, markers)
            case _:
                made.append(record)
    return made if marked else list(unmarked(made))


def _marked(record: Round, markers: Thinking) -> Iterator[Round]:
    """The round, with a round of one plain token before the first and after the last round of the thinking."""
    plain = replace(
        record, gamma=0, drafted=(), p=(), q=(), u=(), beta=(), accepted=0, pieces=(), detail=(), refused=(), offered=0,
        last=1, last_fate=Fate.PLAIN, draft_s=0.0,
    )  # fmt: skip
    if record.number == 0 and not markers.begun:
        yield replace(plain, last_piece=f"{markers.opening}\n", at=record.at - record.seconds)
    yield record
    if record.number == THOUGHT - 1:
        yield replace(plain, last_piece=f"\n{markers.closing}\n\n", number=THOUGHT)
