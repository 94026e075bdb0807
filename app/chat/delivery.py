"""Takes records from a source to the replies and questions they belong to. What is stored of them is stored before."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from specchat.app.chat.archive import Archive
from specchat.app.chat.questions import Questions
from specchat.app.chat.record_queue import RecordQueue
from specchat.app.chat.reply import Stage
from specchat.app.chat.running_replies import RunningReplies
from specchat.app.sources.source import Source
from specchat.engine import Event, Finished, Ready, Record, Request


class Delivery:
    """The way of every record.

    Args:
        running: The replies that records belong to.
        questions: The questions that records answer.
        began: Called when the first record of a reply is there.
        ended: Called with the request of a reply that has ended.
        observe: Called with the request's id and each event of a running reply.
    """

    def __init__(
        self,
        running: RunningReplies,
        questions: Questions,
        began: Callable[[], None],
        ended: Callable[[str], None],
        observe: Callable[[str, Event], None] | None,
    ) -> None:
        self.archive: Archive | None = None
        """None where nothing is stored."""
        self._running = running
        self._questions = questions
        self._began = began
        self._ended = ended
        self._observe = observe
        self._queue = RecordQueue()
        """What is being stored and not yet shown."""

    def take_in(self, source: Source) -> None:
        """Begin to store what the source has to give."""
        records = list(source.drain())
        own = self._running.storable(records) if self.archive is not None else []
        self._queue.add(records, self.archive.append(own) if self.archive is not None and own else None)

    def due(self) -> Iterator[Record]:
        """Hand over what is stored; yields what belongs to no reply and no question, in order."""
        for record in self._queue.due():
            yield from self._hand_over(record)

    def rest(self) -> None:
        """Hand over everything, stored or not."""
        for record in self._queue.rest():
            list(self._hand_over(record))

    def _hand_over(self, record: Record) -> Iterator[Record]:
        request_id = getattr(record, "request_id", None)
        if isinstance(record, Ready):
            self._running.baseline.add(record)
        if request_id is None or isinstance(record, Request):
            yield record
        elif request_id in self._running.turns:
            self._deliver(request_id, record)
        elif request_id in self._questions:
            self._questions.add(request_id, record)

    def _deliver(self, request_id: str, record: Event) -> None:
        if self._observe is not None:
            self._observe(request_id, record)
        reply = self._running.reply(request_id)
        if reply.stage is Stage.WAITING:
            self._began()
        reply.add(record)
        if isinstance(record, Finished):
            self._ended(request_id)
