"""What the engine is asked about one place of a reply, beside the replies themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol
from uuid import uuid4

from specchat.app.chat.examination import Examination
from specchat.app.chat.reply import Reply
from specchat.app.settings.settings import Settings
from specchat.app.sources.source import Source
from specchat.engine import EngineError, Finished, FinishReason, Message, Record, Request, Round


class Question(Protocol):
    """Gets the records of a request that was made for it alone."""

    def add(self, record: Record) -> None:
        """Take in one of them; the last is a `Finished`."""


class Look:
    """Waits for the likeliest tokens of one place.

    `then` gets the round that was made for its `Round.detail`, and None once there is no more to come.
    """

    def __init__(self, then: Callable[[Round | None], None]) -> None:
        self._then = then

    def add(self, record: Record) -> None:
        """Take in an event of the request."""
        if isinstance(record, Round):
            self._then(record)
        elif isinstance(record, Finished):
            self._then(None)


class Questions:
    """The questions that are not answered yet, by request."""

    def __init__(self) -> None:
        self._waiting: dict[str, Question] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    def asked(self, reply: Reply, token: int) -> bool:
        """Whether a token is being examined."""
        return any(isinstance(each, Examination) and each.is_of(reply, token) for each in self._waiting.values())

    def ask(self, source: Source, question: Question, request: Request, context: Sequence[int]) -> None:
        """Ask what comes behind these tokens of a reply to the request.

        Raises:
            EngineError: the source cannot say.
        """
        self._waiting[request.request_id] = question
        try:
            source.examine(request, context)
        except EngineError:
            del self._waiting[request.request_id]
            raise

    def look(
        self,
        source: Source,
        request: Request,
        rounds: Sequence[Round],
        detail: int,
        then: Callable[[Round | None], None],
    ) -> bool:
        """Ask for the likeliest tokens behind these rounds of a reply to the request; whether the source can say."""
        context = tuple(token for record in rounds for token in record.emitted)
        request = replace(request, drafter="none", gamma=0, max_tokens=1, detail=detail)
        try:
            self.ask(source, Look(then), request, context)
        except EngineError:
            return False
        return True

    def examine(
        self, source: Source, examination: Examination, settings: Settings, messages: tuple[Message, ...]
    ) -> None:
        """Ask about a token of a reply to these messages; where the source cannot say, the examination has failed."""
        request = examination.request(settings, uuid4().hex, messages)
        try:
            self.ask(source, examination, request, examination.context)
        except EngineError as error:
            examination.fail(str(error))

    def end(self, sentence: str) -> None:
        """There will be no answers, for this reason."""
        for request_id in list(self._waiting):
            self.add(request_id, Finished(request_id, FinishReason.ERROR, "", sentence, 0.0))

    def add(self, request_id: str, record: Record) -> None:
        """Give a record to the question it answers."""
        question = self._waiting[request_id]
        if isinstance(record, Finished):
            del self._waiting[request_id]
        question.add(record)
