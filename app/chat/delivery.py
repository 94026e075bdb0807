"""Takes records from a source to the replies and questions they belong to; records are stored before they are shown."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass

from specchat.app.chat.archive import Archive
from specchat.app.chat.conversation import Conversation
from specchat.app.chat.questions import Questions
from specchat.app.chat.reply import Reply, Stage, furthest
from specchat.app.chat.turn import Turn
from specchat.app.settings.settings import Settings
from specchat.app.sources.source import Source
from specchat.app.sources.stepper import Part
from specchat.engine import Baseline, Event, Finished, Prefilled, Ready, Record, Request, Round, gamma_text

STORE_WAIT_S = 0.005
"""How long a frame waits for its records to be stored, about five times the usual time."""
LONGEST_WAIT_S = 1.0
"""Records are shown after this time even if they are not stored: the disk hangs, or another program locks the file."""


class RunningReplies:
    """The running replies by request, and the plain rounds that all of them are measured against."""

    def __init__(self) -> None:
        self.source: Source | None = None
        """The source of the replies; None while specchat starts."""
        self.detail = 0
        """Size of the top-k lists that replies record for each tested token; 0 for none."""
        self.turns: dict[str, tuple[Conversation, Turn]] = {}
        """Conversation and turn of each reply, by request."""
        self.baseline = Baseline()

    def make(self, request: Request) -> Reply:
        """A new reply to a request; not running yet."""
        gamma = gamma_text(request.gamma)
        return Reply(request.request_id, drafter=request.drafter, gamma=gamma, baseline=self.baseline)

    def reply(self, request_id: str) -> Reply:
        """The running reply to this request."""
        _conversation, turn = self.turns[request_id]
        return next(reply for reply in turn.replies if reply.request_id == request_id)

    @property
    def stage(self) -> Stage | None:
        """The furthest stage of the replies; None if none is running."""
        return furthest(self.reply(request_id).stage for request_id in self.turns)

    def adjust(self, settings: Settings) -> bool:
        """Draft as in these settings from the next round on; return whether any reply is running.

        Raises:
            EngineError: the models have no such drafter.
        """
        for request_id in self.turns:
            assert self.source is not None
            self.source.adjust(request_id, settings.drafter, settings.gamma)
            self.reply(request_id).gamma = gamma_text(settings.gamma)
        return bool(self.turns)

    def set_detail(self, detail: int) -> None:
        """Record top-k lists of this size in every reply from its next round on; 0 records none."""
        self.detail = detail
        for request_id in self.turns:
            assert self.source is not None
            self.source.set_detail(request_id, detail)

    def cancel(self, replies: Iterable[Reply]) -> None:
        """End those of these replies that are running, keeping their text."""
        for reply in replies:
            if self.source is not None and reply.running:
                reply.stopping = True
                self.source.cancel(reply.request_id)

    def storable(self, records: Sequence[Record]) -> list[tuple[Reply, list[Record]]]:
        """The records to store, by reply."""
        of_reply: dict[str, list[Record]] = {}
        for record in records:
            request_id = getattr(record, "request_id", None)
            if request_id in self.turns and not isinstance(record, Prefilled | Request):
                of_reply.setdefault(request_id, []).append(record)
        return [(self.reply(request_id), own) for request_id, own in of_reply.items()]

    def show_steps(self, steps: Iterable[tuple[Round, Part]]) -> None:
        """Set the rounds that are being stepped through."""
        by_request = {record.request_id: (record, part) for record, part in steps}
        for request_id in self.turns:
            self.reply(request_id).stepping = by_request.get(request_id)

    def follow(self, conversation: Conversation, request: Request) -> None:
        """Add a recorded request to a conversation: its prompt, and the earlier messages if the conversation is new."""
        history = [m for m in request.messages[:-1] if m.role in ("user", "assistant")]
        if not conversation.turns:
            for prompt, reply in zip(history[::2], history[1::2], strict=False):
                conversation.append(Turn(prompt.content, Reply.stored(reply.content, "eos", tuple)))
        last = request.messages[-1].content if request.messages else request.prompt
        turn = Turn(last or f"{len(request.prompt_ids)} token ids", self.make(request))
        conversation.append(turn)
        self.turns[request.request_id] = (conversation, turn)

    def forget(self) -> None:
        """Remove all replies and plain rounds: another model is loaded, or a replay starts again."""
        self.turns.clear()
        self.baseline = Baseline()


@dataclass(frozen=True, slots=True)
class _Arrival:
    """Records that the source returned at once."""

    records: Sequence[Record]
    stored: Future[None] | None
    """Done when they are stored; None if nothing is to be stored."""
    at: float
    """`time.monotonic` of their arrival."""

    @property
    def can_be_shown(self) -> bool:
        """Whether its records are stored, could not be stored, or have waited long enough."""
        return self.stored is None or self.stored.done() or time.monotonic() > self.at + LONGEST_WAIT_S


class Delivery:
    """Delivers the records of a source in order.

    Args:
        running: The replies that records belong to.
        questions: The questions that records answer.
        began: Called with the first record of a reply.
        ended: Called with the request id of a reply that has ended.
        observe: Called with the request id and each event of a running reply.
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
        """None if nothing is stored."""
        self._running = running
        self._questions = questions
        self._began = began
        self._ended = ended
        self._observe = observe
        self._arrivals: deque[_Arrival] = deque()
        """Records that are being stored and not yet shown."""

    def take_in(self, source: Source) -> None:
        """Take new records from the source and start to store them."""
        records = list(source.drain())
        own = self._running.storable(records) if self.archive is not None else []
        stored = self.archive.append(own) if self.archive is not None and own else None
        if records:
            self._arrivals.append(_Arrival(records, stored, time.monotonic()))

    def due(self) -> Iterator[Record]:
        """Deliver stored records, after a short wait for the newest; yield those of no reply or question."""
        if self._arrivals and (newest := self._arrivals[-1].stored) is not None:
            wait([newest], STORE_WAIT_S)
        while self._arrivals and self._arrivals[0].can_be_shown:
            for record in self._arrivals.popleft().records:
                yield from self._deliver(record)

    def rest(self) -> None:
        """Deliver all records, stored or not."""
        while self._arrivals:
            for record in self._arrivals.popleft().records:
                list(self._deliver(record))

    def _deliver(self, record: Record) -> Iterator[Record]:
        request_id = getattr(record, "request_id", None)
        if isinstance(record, Ready):
            self._running.baseline.add(record)
        if request_id is None or isinstance(record, Request):
            yield record
        elif request_id in self._running.turns:
            self._add_to_reply(request_id, record)
        elif request_id in self._questions:
            self._questions.add(request_id, record)

    def _add_to_reply(self, request_id: str, record: Event) -> None:
        if self._observe is not None:
            self._observe(request_id, record)
        reply = self._running.reply(request_id)
        if reply.stage is Stage.WAITING:
            self._began()
        reply.add(record)
        if isinstance(record, Finished):
            self._ended(request_id)
