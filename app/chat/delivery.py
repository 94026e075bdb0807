"""Running replies, the delivery of a source's records to them, and the conversations that wait for one.

Records are stored before they are shown.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace

from specchat.app.chat.conversation import Conversation, Prompt
from specchat.app.chat.reply import Reply
from specchat.app.chat.reply_stage import Stage, furthest
from specchat.app.settings.settings import Settings
from specchat.app.sources.source import NoSource, Part, Source
from specchat.app.storage.store import Chat
from specchat.engine import Baseline, Prefilled, Record, Request, Round, gamma_text

STORE_WAIT_S = 0.005
"""How long a frame waits for its records to be stored, about five times the usual time."""
LONGEST_WAIT_S = 1.0
"""Records are shown after this time even if they are not stored: the disk hangs, or another program locks the file."""


class RunningReplies:
    """The running replies by request, and the plain rounds that all of them are measured against."""

    def __init__(self) -> None:
        self.source: Source = NoSource()
        self.detail = 0
        """Size of the top-k lists that replies record for each tested token; 0 for none."""
        self.replies: dict[str, tuple[Conversation, Reply]] = {}
        """Each reply with its conversation, by request."""
        self.baseline = Baseline()
        self.side_by_side = False
        """Whether the replies are one lane of several, see `Reply.side_by_side`."""

    def make(self, request: Request) -> Reply:
        """A new reply to a request; not running yet."""
        gamma = gamma_text(request.gamma)
        reply = Reply(request.request_id, drafter=request.drafter, gamma=gamma, baseline=self.baseline)
        reply.side_by_side = self.side_by_side
        return reply

    @property
    def stage(self) -> Stage | None:
        """The furthest stage of the replies; None if none is running."""
        return furthest(reply.stage for _, reply in self.replies.values())

    def adjust(self, settings: Settings) -> bool:
        """Draft as in these settings from the next round on; return whether any reply is running.

        Raises:
            EngineError: the models have no such drafter.
        """
        for request_id, (_, reply) in self.replies.items():
            self.source.adjust(request_id, settings.drafter, settings.gamma)
            reply.gamma = gamma_text(settings.gamma)
        return bool(self.replies)

    def set_detail(self, detail: int) -> None:
        """Record top-k lists of this size in every reply from its next round on; 0 records none."""
        self.detail = detail
        for request_id in self.replies:
            self.source.set_detail(request_id, detail)

    def cancel(self, replies: Iterable[Reply]) -> None:
        """End the running replies of this group, keeping their text."""
        for reply in replies:
            if reply.calling is not None:
                reply.calling.stop()
            elif reply.running:
                reply.stopping = True
                self.source.cancel(reply.request_id)

    def storable(self, records: Sequence[Record]) -> list[tuple[Reply, list[Record]]]:
        """The records to store, by reply."""
        of_reply: dict[str, list[Record]] = {}
        for record in records:
            request_id = getattr(record, "request_id", None)
            if request_id in self.replies and not isinstance(record, Prefilled | Request):
                of_reply.setdefault(request_id, []).append(record)
        return [(self.replies[request_id][1], own) for request_id, own in of_reply.items()]

    def show_steps(self, steps: Iterable[tuple[Round, Part]], *, paused: bool) -> None:
        """Set the rounds that are being stepped through, and whether rounds are held back."""
        by_request = {record.request_id: (record, part) for record, part in steps}
        for request_id, (_, reply) in self.replies.items():
            reply.stepping, reply.held = by_request.get(request_id), paused

    def follow(self, conversation: Conversation, request: Request) -> None:
        """Add a recorded request to a conversation: its prompt, and the earlier messages if the conversation is new."""
        history = [m for m in request.messages[:-1] if m.role in ("user", "assistant")]
        if not conversation.prompts:
            for asked, answer in zip(history[::2], history[1::2], strict=False):
                conversation.append(Prompt.of(asked))
                conversation.append(Reply.stored(answer.parts, "eos", tuple))
        reply = self.make(request)
        text = request.prompt or f"{len(request.prompt_ids)} token ids"
        conversation.append(Prompt.of(request.messages[-1]) if request.messages else Prompt(text))
        conversation.append(reply)
        self.replies[request.request_id] = (conversation, reply)

    def forget(self) -> None:
        """Remove all replies and plain rounds: another model is loaded, or a replay starts again."""
        self.replies.clear()
        self.baseline = Baseline()


class Arrivals:
    """Records in the order of their arrival, which are shown when they are stored."""

    def __init__(self) -> None:
        self._batches: deque[tuple[Sequence[Record], Future[None] | None, float]] = deque()
        """Records that came at once; done when they are stored, None if nothing is to be stored; and when they came."""

    def add(self, records: Sequence[Record], stored: Future[None] | None) -> None:
        """Add records that came at once."""
        if records:
            self._batches.append((records, stored, time.monotonic()))

    def due(self) -> Iterator[Record]:
        """Remove the records that are stored or have waited long enough, after a short wait for the newest."""
        if self._batches and (newest := self._batches[-1][1]) is not None:
            wait([newest], STORE_WAIT_S)
        while self._batches:
            records, stored, at = self._batches[0]
            if stored is not None and not stored.done() and time.monotonic() <= at + LONGEST_WAIT_S:
                return
            self._batches.popleft()
            yield from records

    def rest(self) -> Iterator[Record]:
        """Remove all records."""
        while self._batches:
            yield from self._batches.popleft()[0]


@dataclass(frozen=True, slots=True)
class Marks:
    """Ids of chats by their state."""

    answering: frozenset[int] = frozenset()
    waiting: frozenset[int] = frozenset()
    """A prompt was sent and no reply has started: the models are loading or every slot is in use."""
    news: frozenset[int] = frozenset()
    """A reply has ended since the chat was last shown."""

    def sign(self, chat_id: int) -> tuple[str, str]:
        """The sign before the title, two columns wide, and its style."""
        if chat_id in self.answering:
            return "● ", "busy"
        if chat_id in self.waiting:
            return "◌ ", "busy"
        return ("◆ ", "news") if chat_id in self.news else ("  ", "busy")

    def without(self, chat_id: int) -> Marks:
        """The marks of the other chats."""
        return Marks(*(frozenset(ids - {chat_id}) for ids in (self.answering, self.waiting, self.news)))


class ActiveConversations:
    """The conversations in which something was sent, as long as they have more than is stored."""

    def __init__(self) -> None:
        self._busy: list[Conversation] = []
        self.ended: set[int] = set()
        """Chats with a reply that has ended since the list of chats was last shown."""

    def __iter__(self) -> Iterator[Conversation]:
        return iter(list(self._busy))

    def watch(self, conversation: Conversation) -> None:
        """Add a conversation in which something was sent."""
        if conversation not in self._busy:
            self._busy.append(conversation)

    def of_chat(self, chat_id: int) -> Conversation | None:
        """The conversation of this chat if it is one of these."""
        self._forget_idle()
        return next((c for c in self._busy if c.chat and c.chat.id == chat_id), None)

    def news(self, chats: Iterable[Chat], opened: Chat | None) -> list[Chat]:
        """These chats with the replies that have ended since the last call as news, except in the open one."""
        ended, self.ended = self.ended, set()
        at = opened.id if opened else None
        return [replace(chat, news=chat.id != at and (chat.news or chat.id in ended)) for chat in chats]

    def marks(self, chats: Iterable[Chat]) -> Marks:
        """The states of these chats."""
        self._forget_idle()
        busy = {c.chat.id: c.busy for c in self._busy if c.chat and (c.busy or c.waiting)}
        busy = {i: replies for i, replies in busy.items() if not any(r.calling and r.calling.asks for r in replies)}
        answering = {i for i, replies in busy.items() if any(r.stage is not Stage.WAITING for r in replies)}
        news = frozenset(chat.id for chat in chats if chat.news)
        return Marks(frozenset(answering), frozenset(busy.keys() - answering), news)

    def _forget_idle(self) -> None:
        self._busy = [c for c in self._busy if c.unstored]
