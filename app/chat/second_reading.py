"""Comparison of two drafters on an ended reply: the target reads it again while both draft along."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING
from uuid import uuid4

from specchat.app.chat.conversation import Conversation
from specchat.app.chat.reply import Reply
from specchat.app.chat.request_manager import STARTING, UNCONNECTED, RequestManager
from specchat.app.errors import UsageError
from specchat.app.settings.settings import Settings
from specchat.app.sources.source import Stepper
from specchat.engine import Engine, Fate, Sampling

if TYPE_CHECKING:
    from specchat.engine.tools.evaluate import Alignment

GAMMA = 4
"""Draft length if the settings leave it to the controller; same as in `specchat evaluate`."""


class Had(StrEnum):
    """The drafters, of two (A and B), that drafted a token."""

    BOTH = "both"
    ONLY_A = "only A"
    ONLY_B = "only B"
    NEITHER = "neither"


_HAD = {(True, True): Had.BOTH, (True, False): Had.ONLY_A, (False, True): Had.ONLY_B, (False, False): Had.NEITHER}


class AlignedReply:
    """The tokens of a reply, and which of two drafters drafted each of them.

    Args:
        texts: Texts of its tokens.
        alignment: Matches of both drafters per token; it may end before the reply does.
    """

    def __init__(self, texts: Sequence[str], alignment: Alignment) -> None:
        self.alignment = alignment
        self.had = [_HAD[one.predicted, other.predicted] for one, other in zip(*alignment.places, strict=True)]
        """The drafters of each token."""
        self.texts = list(texts[: len(self.had)])
        self.counts = Counter(self.had)

    def next(self, place: int, had: Had, step: int) -> int | None:
        """The next such token after a place (step 1) or the previous one (step -1); None at the end."""
        found = range(place + 1, len(self.had)) if step > 0 else range(place - 1, -1, -1)
        return next((other for other in found if self.had[other] is had), None)


def said_texts(reply: Reply) -> list[str]:
    """The text of each emitted token of a reply."""
    unsaid = (Fate.REJECTED, Fate.DISCARDED)
    return [token.text for record in reply.rounds for token in record.tokens() if token.fate not in unsaid]


class SecondReading:
    """Reads a reply of a conversation again on the engine of the chat.

    Raises:
        UsageError: the reply, or this chat, does not allow it.
    """

    def __init__(self, requests: RequestManager, conversation: Conversation, reply: Reply) -> None:
        prompt = conversation.prompt_of(reply)
        self._engine, chosen = _engine(requests)
        self.gamma = chosen.gamma or GAMMA
        """Draft length of both drafters."""
        if prompt is None:
            raise UsageError("there is no reply to compare drafts on: ask something first")
        if reply.running:
            raise UsageError("this reply is still being written: compare drafts when it has ended")
        if reply.model and reply.model != requests.model:
            raise UsageError(f"this reply came from {reply.model}: load that (/model) to compare drafts on it")
        if not reply.emitted or reply.metrics.observed:
            raise UsageError("the tokens of this reply are not known: compare drafts on one that was written here")
        self._reply = reply
        settings = chosen.with_thinking(conversation.thinking)
        request = settings.request(uuid4().hex, conversation.messages_of(prompt, reply))
        drawn, known = _sampling(reply, request.sampling), prompt.reply_rows
        self._request = replace(request, sampling=drawn, not_drafted_from=known, constraint=reply.constraint)

    def begin(self, drafters: tuple[str, str]) -> Future[Alignment]:
        """Start reading; the future raises `EngineError` on failure."""
        from specchat.engine.tools.evaluate import align  # imports torch, which the engine has loaded

        position = self._reply.rounds[0].position
        return align(self._engine, self._request, self._reply.emitted, position, drafters, self.gamma)


def _engine(requests: RequestManager) -> tuple[Engine, Settings]:
    """The engine of the chat, and the settings.

    Raises:
        UsageError: there is no engine, or it is not ready.
    """
    session = requests.session
    if session is UNCONNECTED:
        raise UsageError(f"{STARTING}: try again in a moment")
    if session.attached:
        raise UsageError("drafts are compared by an engine, which is not here but at the server: chat without --attach")
    if requests.effective is None:
        raise UsageError("drafts are compared by an engine, and this is a replay: open the chat itself")
    source = session.source
    if isinstance(source, Stepper):
        if source.paused:
            raise UsageError("no pass is run while it is paused: resume it (p) first")
        source = source.source
    if not isinstance(source, Engine):
        raise UsageError("drafts are compared by an engine, and no model is loaded: /model loads one")
    if source.ready is None:
        raise UsageError("the models are still being loaded: compare drafts when that is done")
    return source, requests.effective


def _sampling(reply: Reply, now: Sampling) -> Sampling:
    """How the reply was sampled, as recorded; else greedily, if its rounds show it, or by the current settings."""
    if reply.sampling is not None:
        return replace(reply.sampling, lenience=1.0)
    tested = [p for record in reply.rounds for p in record.p]
    greedy = now.greedy or (bool(tested) and all(p in (0, 1) for p in tested))
    return Sampling() if greedy else replace(now, lenience=1.0)
