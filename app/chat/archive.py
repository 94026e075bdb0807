"""Stores conversations in one background thread, in order, so that the interface never waits for a disk."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple, TypeVar

from specchat.app.chat.conversation import Conversation, Turn
from specchat.app.chat.past_replies import PastReplies
from specchat.app.chat.reply import Reply
from specchat.app.chat.stored_conversation import stored_conversation
from specchat.app.chat.unsent import NO_CHAT, Unsent
from specchat.app.errors import AppError, LostRowError
from specchat.app.storage.attachments import Attachment
from specchat.app.storage.search_index import Hit
from specchat.app.storage.store import Chat, Store
from specchat.engine import Admitted, Finished, Record, Round, to_json

T = TypeVar("T")
PROMPTS = 500
"""How many earlier prompts the composer knows."""
RETRY_S = 1.0
"""A full disk, or a file that another program locks, is tried again after this."""


class Archive:
    """The store behind one writing thread: jobs run in the order they were given.

    What was said in a chat and cannot be stored is kept and tried again, in order, before whatever comes later: no
    prompt is missing, and no reply has a hole. `on_error` gets one sentence when that begins, and for each other job
    that failed; it is called in the writing thread. `past` is told when a reply has ended, and when a chat was deleted
    or restored; it is closed with the store.
    """

    def __init__(self, store: Store, on_error: Callable[[str], None], past: PastReplies | None = None) -> None:
        self._store = store
        self._past = past
        self._on_error = on_error
        self._behind: deque[Callable[[], None]] = deque()
        """What is not stored yet, oldest first; only the writing thread uses it."""
        self._retry_at = 0.0
        """When to try again, by `time.monotonic`; 0 if all went well."""
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="archive")

    def chats(self) -> Future[list[Chat] | None]:
        """Every chat, newest first."""
        return self._do(self._store.chats)

    def open(self, chat: Chat) -> Future[Conversation | None]:
        """A chat as it was stored; the rounds of a reply are read when they are first needed."""

        def read(message_id: int) -> tuple[str, ...]:
            try:
                return self._store.events(message_id)
            except AppError as error:
                self._on_error(str(error))
                return ()

        return self._do(lambda: stored_conversation(chat, self._store.messages(chat.id, events=False), read))

    def prompt(self, conversation: Conversation, turn: Turn) -> Future[None]:
        """Store a prompt as soon as it is sent; the first one of a conversation makes its chat."""
        before = _Place.behind(conversation.before(turn))

        def write() -> None:
            with self._store.one_transaction():
                chat = conversation.chat or self._store.create_chat(conversation.title, conversation.system or "")
                if conversation.chat is None and conversation.thinking is not None:
                    self._store.set_thinking(chat.id, conversation.thinking)
                prompt_id = self._store.add_message(
                    chat.id, "user", turn.prompt, parent=before.row, attachments=turn.attachments
                )
            conversation.chat, turn.prompt_id = chat, prompt_id

        return self._in_order(write)

    def begin(self, conversation: Conversation, turn: Turn, replies: Sequence[Reply]) -> Future[None]:
        """Add replies to a turn in the store, with no more than what they begin with."""
        before = _Place.behind(conversation.before(turn))
        shown = turn.reply
        given = [list(reply.rounds) for reply in replies]

        def write() -> None:
            if conversation.chat is None or turn.prompt_id is None:  # could not be stored: that was said then
                return
            with self._store.one_transaction():
                if before.row is not None:
                    self._store.set_parent(turn.prompt_id, before.row)
                rows = [
                    self._store.add_message(
                        conversation.chat.id,
                        "assistant",
                        "",
                        parent=turn.prompt_id,
                        chosen=reply is shown,
                        model=reply.model,
                    )
                    for reply in replies
                ]
                for row, rounds in zip(rows, given, strict=True):
                    if rounds:
                        text = "".join(record.text for record in rounds)
                        self._store.append_rounds(row, text, [to_json(record) for record in rounds])
            for reply, row in zip(replies, rows, strict=True):
                reply.message_id = row

        return self._in_order(write)

    def append(self, additions: list[tuple[Reply, list[Record]]]) -> Future[None]:
        """Add records to replies, all in one transaction; a `Finished` marks its reply as ended."""

        def write() -> None:
            with self._store.one_transaction():
                for reply, records in additions:
                    self._add(reply, records)
            if any(isinstance(record, Finished) for _, records in additions for record in records):
                self._tell()

        return self._in_order(write)

    def finish(self, reply: Reply, reason: str) -> Future[None]:
        """Mark a reply as ended that got no `Finished`."""

        def write() -> None:
            if reply.message_id is not None:
                self._store.finish_message(reply.message_id, reason)

        return self._in_order(write)

    def choose(self, one: Reply | Turn) -> Future[None]:
        """Continue the chat with this one of several replies, or of several versions of a prompt."""

        def write() -> None:
            row = one.prompt_id if isinstance(one, Turn) else one.message_id
            if row is not None:
                self._store.choose(row)

        return self._in_order(write)

    def set_tokens(self, turn: Turn, name: str, tokens: int) -> Future[None]:
        """Store how many tokens something takes that was sent along with a prompt."""

        def write() -> None:
            if turn.prompt_id is not None:
                self._store.attachments.set_tokens(turn.prompt_id, name, tokens)

        return self._in_order(write)

    def find(self, text: str) -> Future[list[Hit] | None]:
        """Where all these words stand, in titles, prompts with what was sent along, and replies."""

        def read() -> list[Hit]:
            self._store.search.update()
            return self._store.search.find(text)

        return self._do(read)

    def index(self) -> Future[None]:
        """Bring the search up to date, in small steps that let others in between."""

        def step() -> None:
            if self._store.search.update():
                self.index()

        return self._do(step)

    def prompts(self) -> Future[list[str] | None]:
        """The newest prompts of all chats."""
        return self._do(lambda: self._store.prompts(PROMPTS))

    def models(self) -> Future[list[str] | None]:
        """What replies came from, the one that answered last first."""
        return self._do(self._store.models)

    def set_system(self, conversation: Conversation) -> Future[None]:
        """Store the instructions to the model; those of a chat without a row are stored with its first prompt."""

        def write() -> None:
            if conversation.chat is not None:
                self._store.set_system(conversation.chat.id, conversation.system or "")

        return self._in_order(write)

    def set_thinking(self, conversation: Conversation) -> Future[None]:
        """Store whether the model thinks; that of a chat without a row is stored with its first prompt."""

        def write() -> None:
            if conversation.chat is not None:
                self._store.set_thinking(conversation.chat.id, conversation.thinking)

        return self._in_order(write)

    def pin(self, chat: Chat, pinned: bool) -> Future[None]:
        """Let a chat stand above the others, or among them again."""
        return self._do(lambda: self._store.pin_chat(chat.id, pinned))

    def fork(self, turns: Sequence[Turn], title: str, system: str, thinking: bool | None) -> Future[Chat | None]:
        """A new chat with copies of these turns and of the replies that the path goes on with."""

        def write() -> Chat:
            if self._behind:
                raise AppError("the chat is not forked: what was said in it is not stored yet")
            rows = [(turn.prompt_id, turn.reply.message_id if turn.reply else None) for turn in turns]
            with self._store.one_transaction():
                chat = self._store.fork_chat([row for pair in rows for row in pair if row is not None], title, system)
                self._store.set_thinking(chat.id, thinking)
            return replace(chat, thinking=thinking)

        return self._do(write)

    def take_back(self, conversation: Conversation, turns: list[Turn], unsent: Unsent | None = None) -> Future[None]:
        """Remove prompts that were never asked; a chat that had nothing else goes with them.

        Args:
            conversation: Had them.
            turns: The prompts.
            unsent: What is typed and not sent there from now on, with these prompts; None leaves it as it is.
        """

        def write() -> None:
            chat = conversation.chat
            with self._store.one_transaction():
                for turn in reversed(turns):  # each follows the one before it
                    if turn.prompt_id is not None:
                        self._store.take_back(turn.prompt_id)
                if turns and chat is not None and not self._store.messages(chat.id):
                    self._store.delete_chat(chat.id)
                    chat = None
                if unsent is not None:
                    self._store.unsent.keep(NO_CHAT if chat is None else chat.id, *unsent)
            if chat is None:
                conversation.chat = None

        return self._in_order(write)

    def unsent(self) -> Future[tuple[dict[int, str], dict[int, tuple[Attachment, ...]]] | None]:
        """What was typed and not sent, and what is attached to it, by the chat's id."""
        return self._do(lambda: (self._store.unsent.texts(), self._store.unsent.attachments()))

    def keep_unsent(self, chat_id: int, text: str, attachments: Sequence[Attachment] | None) -> Future[None]:
        """Store what is typed and not sent in a chat; without attachments, those that are stored stay."""
        return self._in_order(lambda: self._store.unsent.keep(chat_id, text, attachments))

    def rename(self, chat: Chat, title: str) -> Future[None]:
        """Give a chat another title."""
        return self._do(lambda: self._store.rename_chat(chat.id, title))

    def delete(self, chat: Chat) -> Future[None]:
        """Take a chat off the list."""

        def delete() -> None:
            self._store.delete_chat(chat.id)
            self._tell()

        return self._do(delete)

    def restore(self, chat: Chat) -> Future[None]:
        """Undo `delete`."""

        def restore() -> None:
            self._store.restore_chat(chat.id)
            self._tell()

        return self._do(restore)

    def close(self) -> None:
        """Write what is left and close the store."""

        def last_try() -> None:
            self._retry_at = 0.0
            self._catch_up()

        self._do(last_try)
        self._writer.shutdown(wait=True)
        if self._past is not None:
            self._past.close()
        self._store.close()

    def _tell(self) -> None:
        """There are other replies than before."""
        if self._past is not None:
            self._past.refresh()

    def _add(self, reply: Reply, records: Sequence[Record]) -> None:
        """Store records of a reply; one that has no row is left out, since that was said when it began."""
        if reply.message_id is None:
            return
        text = "".join(_text(record, reply) for record in records)
        self._store.append_rounds(reply.message_id, text, [to_json(record) for record in records])
        for record in records:
            if isinstance(record, Finished):
                self._store.finish_message(reply.message_id, record.reason.value)

    def _in_order(self, write: Callable[[], None]) -> Future[None]:
        """Store something behind all that is to be stored before it, now or later."""

        def job() -> None:
            self._behind.append(write)
            self._catch_up()

        return self._do(job)

    def _catch_up(self) -> None:
        """Store what is behind; after a failure not before `RETRY_S`, and only the first failure is raised."""
        if time.monotonic() < self._retry_at:
            return
        while self._behind:
            try:
                self._behind[0]()
            except LostRowError as error:
                self._on_error(str(error))
            except AppError:
                known = self._retry_at > 0
                self._retry_at = time.monotonic() + RETRY_S
                if not known:
                    raise
                return
            self._behind.popleft()
        self._retry_at = 0.0

    def _do(self, job: Callable[[], T]) -> Future[T | None]:
        def guarded() -> T | None:
            try:
                self._catch_up()
                return job()
            except AppError as error:
                self._on_error(str(error))
                return None

        return self._writer.submit(guarded)


def _text(record: Record, reply: Reply) -> str:
    """What a record adds to its reply. Of what it begins with, the rounds it took over are stored already."""
    match record:
        case Round():
            return record.text
        case Finished():
            return record.tail
        case Admitted():
            return "".join(token.text for token in record.given[reply.numbered.carried :])
    return ""


class _Place(NamedTuple):
    """Where a prompt stands: behind a reply; behind a prompt, where that has none yet; or nowhere, as the first."""

    turn: Turn | None
    reply: Reply | None

    @classmethod
    def behind(cls, turn: Turn | None) -> _Place:
        """Behind a turn as it is now: another reply may be shown when this is stored."""
        return cls(turn, None if turn is None else turn.reply)

    @property
    def row(self) -> int | None:
        """The row that stands before it."""
        if self.turn is None:
            return None
        return self.turn.prompt_id if self.reply is None or self.reply.message_id is None else self.reply.message_id
