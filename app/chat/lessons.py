"""The lessons of the tour: two rounds of a recorded reply, explained step by step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from specchat.app.chat.conversation import Conversation, Turn
from specchat.app.chat.reply import Reply
from specchat.app.sources.source import Part
from specchat.engine import Record, Request, Round

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
    whole: Reply
    """The reply up to the end of the last lesson's round, for details of a token."""
    token: int | None
    """The selected token, by the numbers of `Reply.starts`, if any."""

    @property
    def reply(self) -> Reply:
        """The reply up to this step."""
        reply = self.conversation.turns[-1].reply
        assert reply is not None
        return reply


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

    def lesson(name: str, sentence: str, text: str, done: int, part: Part | None = None) -> Lesson:
        reply = _reply(rounds[:done])
        reply.stepping = None if part is None else (told, part)
        return Lesson(name, sentence, text, Conversation(turns=[Turn(prompt, reply)]), whole, places.get(name))

    return [
        lesson(
            "draft", "The drafter proposes some tokens.",
            f"The drafter is small and quick, the target is the model you chat with. {len(told.drafted)} tokens (words "
            f"or parts of words) are drafted here: “{guess}”. They may be wrong: nothing is decided yet.",
            FIRST, Part.DRAFTED,
        ),
        lesson(
            "verify", "The target verifies all of them in one pass.",
            f"A pass over {len(told.drafted)} tokens takes about as long as one over a single token: to verify is "
            "cheaper than to write. The pass gives how likely each drafted token is to the target (p), which is "
            "compared with how likely it was to the drafter (q).",
            FIRST, Part.DRAFTED,
        ),
        lesson(
            "accept", f"“{kept}” is accepted.",
            "A token that is at least as likely to the target as to the drafter is always accepted. Otherwise a random "
            "number u decides, with probability p / q: it is accepted where ◆ lies on the coloured part of the line.",
            FIRST, Part.JUDGED,
        ),
        lesson(
            "reject", f"“{refused}” is rejected.",
            "All tokens that were drafted after it are discarded untested, because each builds on the one before. A "
            "finished reply has the sign ┊ there; click on it to see them.",
            FIRST, Part.JUDGED,
        ),
        lesson(
            "correct", f"The correction is “{instead}”.",
            "It is drawn from tokens that are likelier to the target than to the drafter. Thus each token comes as "
            "often as if the target had written alone: the reply is no different, only sooner. The next round begins "
            "after it.",
            FIRST + 1,
        ),
        lesson(
            "bonus", "When all are accepted, there is a bonus token.",
            f"The pass that verified {len(rounds[FIRST + 1].drafted)} tokens also says what comes after them. Here "
            f"one round gave {len(rounds[FIRST + 1].emitted)} tokens; how many it gives on average is τ, and what it "
            "gains is “measured” in the panel. d explains every figure.",
            FIRST + 2,
        ),
    ]  # fmt: skip


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
