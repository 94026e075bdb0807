"""The lessons of the tour: two rounds of a recorded reply, explained step by step."""

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from specchat.app.chat.conversation import Conversation, Prompt
from specchat.app.chat.reply import Reply
from specchat.app.sources.source import Part
from specchat.engine import Record, Request, Round

TEXTS = Path(__file__).with_name("lessons.toml")
FIRST = 3
"""The explained round of the trace `app.paths.TOUR`, which has a rejection; the round after it has none."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """One screen of the tour."""

    name: str
    sentence: str
    """The lesson in a few words."""
    text: str
    conversation: Conversation
    """The conversation up to this step."""
    reply: Reply
    """The reply up to this step."""
    whole: Reply
    """The reply up to the end of the last lesson's round, for details of a token."""
    token: int | None
    """The selected token, by the numbers of `Reply.starts`, if any."""


def lessons(records: Iterable[Record]) -> list[Lesson]:
    """All lessons, from the records of one reply."""
    records = list(records)
    request = next(record for record in records if isinstance(record, Request))
    prompt = request.messages[-1].content
    rounds = [record for record in records if isinstance(record, Round)]
    rounds[:FIRST] = map(_as_read, rounds[:FIRST])
    told = rounds[FIRST]
    whole = _reply(rounds[: FIRST + 2])
    start, bonus = whole.starts[FIRST], whole.tokens - 1
    places = {"accept": start, "reject": start + told.accepted, "correct": start + len(told.drafted), "bonus": bonus}
    kept, refused, instead = (whole.token(places[name])[1].text.strip() for name in ("accept", "reject", "correct"))
    guess = "".join(told.pieces).strip()

    words = {"drafted": len(told.drafted), "guess": guess, "kept": kept, "refused": refused, "instead": instead}
    words |= {"next": len(rounds[FIRST + 1].drafted), "emitted": len(rounds[FIRST + 1].emitted)}
    made = []
    for name, told_of in tomllib.loads(TEXTS.read_text(encoding="utf-8")).items():
        reply = _reply(rounds[: FIRST + told_of["rounds"]])
        reply.stepping = (told, Part[told_of["part"]]) if "part" in told_of else None
        sentence, text = (" ".join(told_of[part].format(**words).split()) for part in ("sentence", "text"))
        conversation = Conversation(path=[Prompt(prompt), reply])
        made.append(Lesson(name, sentence, text, conversation, reply, whole, places.get(name)))
    return made


def _as_read(record: Round) -> Round:
    """A round without its rejected tokens, so that the first lesson shows one draft."""
    kept = record.accepted
    parts = {name: getattr(record, name)[:kept] for name in ("drafted", "pieces", "p", "q", "u", "beta")}
    return replace(record, **parts, detail=())


def _reply(rounds: Iterable[Round]) -> Reply:
    reply = Reply()
    for record in rounds:
        reply.add(record)
    return reply
