"""A second reading: a reply that has ended is read by the target again, and two drafters draft along it."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import uuid4

from specchat.app.chat.conversation import Conversation
from specchat.app.chat.reply import Reply
from specchat.app.chat.request_manager import STARTING, RequestManager
from specchat.app.chat.requests import told
from specchat.app.errors import UsageError
from specchat.app.settings.settings import Settings
from specchat.app.sources.stepper import Stepper
from specchat.engine import Engine, Sampling

if TYPE_CHECKING:
    from specchat.engine.tools.evaluate import Alignment

GAMMA = 4
"""Draft length where the settings leave it to the controller; `specchat evaluate` has the same."""


class SecondReading:
    """Asks the engine of a chat to read one of its replies again.

    Args:
        requests: of the chat.
        conversation: has the reply.
        reply: to be read.

    Raises:
        UsageError: the reply cannot be read, or not here.
    """

    def __init__(self, requests: RequestManager, conversation: Conversation, reply: Reply) -> None:
        turn = next((turn for turn in conversation.turns if reply in turn.replies), None)
        self._engine, self._settings = _engine(requests)
        if turn is None:
            raise UsageError("there is no reply to compare drafts on: ask something first")
        if reply.running:
            raise UsageError("this reply is still being written: compare drafts when it has ended")
        if reply.model and reply.model != requests.model:
            raise UsageError(f"this reply came from {reply.model}: load that (/model) to compare drafts on it")
        if not reply.emitted or reply.metrics.observed:
            raise UsageError("the tokens of this reply are not known: compare drafts on one that was written here")
        self._reply = reply
        settings = self._settings.with_thinking(conversation.thinking)
        request = settings.request(uuid4().hex, told(conversation, turn, reply))
        self._request = replace(request, sampling=_sampling(reply, request.sampling))

    @property
    def gamma(self) -> int:
        """Draft length that both have."""
        return self._settings.gamma or GAMMA

    def begin(self, drafters: tuple[str, str]) -> Future[Alignment]:
        """Begin to read; the result has an `EngineError` where that fails."""
        from specchat.engine.tools.evaluate import align  # imports torch, which is there once an engine is

        position = self._reply.rounds[0].position
        return align(self._engine, self._request, self._reply.emitted, position, drafters, self.gamma)


def _engine(requests: RequestManager) -> tuple[Engine, Settings]:
    """The engine that answers, and the settings.

    Raises:
        UsageError: there is none that could read now.
    """
    session = requests.session
    if session is None:
        raise UsageError(f"{STARTING}: try again in a moment")
    if session.attached:
        raise UsageError(
            "drafts are compared by an engine, and it is not here but at the server: chat without --attach"
        )
    if requests.settings is None:
        raise UsageError("drafts are compared by an engine, and this is a replay: open the chat itself")
    source = session.source
    if isinstance(source, Stepper):
        if source.paused:
            raise UsageError("no pass is run while it is paused: go on (f10) first")
        source = source.source
    if not isinstance(source, Engine):
        raise UsageError("drafts are compared by an engine, and no model is loaded: /model loads one")
    if source.ready is None:
        raise UsageError("the models are still being loaded: compare drafts when they are there")
    return source, requests.settings


def _sampling(reply: Reply, now: Sampling) -> Sampling:
    """How the reply's tokens were chosen, as far as is known: greedy, or as the settings have it now."""
    judged = [p for record in reply.rounds for p in record.p]
    greedy = now.greedy or (bool(judged) and all(p in (0, 1) for p in judged))
    return Sampling() if greedy else replace(now, seed=0, lenience=1.0)
