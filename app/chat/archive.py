"""Stores conversations in one background thread, in order, so that the interface never waits for a disk."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from specchat.app.chat.conversation import Conversation, Prompt, parent_row
from specchat.app.chat.parts import parts_of
from specchat.app.chat.past_replies import PastReplies
from specchat.app.chat.reply import Reply
from specchat.app.chat.stored_conversation import stored_conversation
from specchat.app.chat.tray import NO_CHAT, Unsent, joined
from specchat.app.chat.tree import Node
from specchat.app.errors import AppError, LostRowError
from specchat.app.storage.attachments import Attachment
from specchat.app.storage.search_index import Hit
from specchat.app.storage.store import Chat, Store
from specchat.engine import Finished, Measured, Record, to_json

T = TypeVar("T")
RETRY_S = 1.0
"""Interval of retries after a failure (full disk, file locked by another program)."""
PROMPTS = 500
"""Number of earlier prompts that the composer can recall."""


class StoreWriter:
    """Runs jobs in one background thread, in the order they were given.

    Changes that cannot be stored are kept and retried in order before later jobs, so that no prompt is missing and no
    reply has a gap. `on_error` is called in this thread with a sentence when that starts, and for each other job that
    failed. A change that fails otherwise than with an `AppError` is dropped.
    """

    def __init__(self, on_error: Callable[[str], None]) -> None:
        self._on_error = on_error
        self._backlog: deque[Callable[[], None]] = deque()
        """Changes that are not stored yet, oldest first; used in the thread only."""
        self._retry_at = 0.0
        """When to retry, by `time.monotonic`; 0 without a failure."""
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="archive")

    def do(self, job: Callable[[], T]) -> Future[T | None]:
        """Run a job once; the result is None if it fails."""

        def guarded() -> T | None:
            try:
                self._catch_up()
                return job()
            except AppError as error:
                self._on_error(str(error))
                return None

        return self._thread.submit(guarded)

    def in_order(self, change: Callable[[], None]) -> Future[None]:
        """Store a change after all changes before it, now or later."""

        def job() -> None:
            self._backlog.append(change)
            self._catch_up()

        return self.do(job)

    def close(self) -> None:
        """Try the changes that are not stored yet once more, and end the thread."""

        def last_try() -> None:
            self._retry_at = 0.0
            self._catch_up()

        self.do(last_try)
        self._thread.shutdown(wait=True)

    def _catch_up(self) -> None:
        """Store the backlog; after a failure not before `RETRY_S`, and only the first failure is raised."""
        if time.monotonic() < self._retry_at:
            return
        while self._backlog:
            try:
                self._backlog[0]()
            except LostRowError as error:
                self._on_error(str(error))
            except AppError:
                known = self._retry_at > 0
                self._retry_at = time.monotonic() + RETRY_S
                if not known:
                    raise
                return
            except Exception as error:
                self._on_error(f"a change is not stored ({type(error).__name__}: {error}); later ones are")
            self._backlog.popleft()
        self._retry_at = 0.0


class Archive(StoreWriter):
    """The store with a writing thread, see `StoreWriter`.

    `on_error` is called in that thread with a sentence for each failure. `past` is told when a reply has ended and when
    a chat was deleted or restored, and is closed with the store.
    """

    def __init__(self, store: Store, on_error: Callable[[str], None], past: PastReplies | None = None) -> None:
        super().__init__(on_error)
        self._store, self._past = store, past

    def chats(self) -> Future[list[Chat] | None]:
        """All chats, newest first."""
        return self.do(lambda: self._store.chats())

    def open(self, chat: Chat) -> Future[Conversation | None]:
        """The conversation of a chat. The rounds of its replies are read on first access."""

        def read(message_id: int) -> tuple[str, ...]:
            try:
                return self._store.events(message_id)
            except AppError as error:
                self._on_error(str(error))
                return ()

        return self.do(lambda: stored_conversation(chat, self._store.messages(chat.id, events=False), read))

    def prompt(self, conversation: Conversation, prompt: Prompt) -> Future[None]:
        """Store a prompt; the first one of a conversation creates its chat, or is that of the other lane."""
        parent, lane = parent_row(prompt), conversation.other_lane
        shared = lane.prompts[0] if lane is not None and conversation.prompts[0] is prompt else None

        def write() -> None:
            if lane is not None and shared is not None:
                conversation.chat, prompt.row = lane.chat, shared.row
                return
            with self._store.one_transaction():
                chat = conversation.chat or self._store.create_chat(conversation.title)
                if conversation.chat is None:
                    self._store.change_chat(chat.id, **_options(conversation))
                files, returned = prompt.attachments, prompt.results
                row = self._store.add_message(
                    chat.id, "user", prompt.text, parent=parent(), attachments=files, results=returned
                )
            conversation.chat, prompt.row = chat, row

        return self.in_order(write)

    def begin(self, conversation: Conversation, prompt: Prompt, replies: Sequence[Reply]) -> Future[None]:
        """Add new replies to a stored prompt, with the rounds that they start with."""
        parent, shown = parent_row(prompt), prompt.reply
        given = [list(reply.rounds) for reply in replies]

        def write() -> None:
            chat, asked = conversation.chat, prompt.row
            if chat is None or asked is None:  # could not be stored, which was reported then
                return
            rows = []
            with self._store.one_transaction():
                if (before := parent()) is not None:
                    self._store.set_parent(asked, before)
                for reply, rounds in zip(replies, given, strict=True):
                    chosen, model = reply is shown, reply.model
                    row = self._store.add_message(chat.id, "assistant", "", parent=asked, chosen=chosen, model=model)
                    self._append(row, rounds)
                    rows.append(row)
            for reply, row in zip(replies, rows, strict=True):
                reply.row = row

        return self.in_order(write)

    def append(self, additions: Sequence[tuple[Reply, Sequence[Record | Measured]]]) -> Future[None]:
        """Add records to replies in one transaction; a `Finished` marks its reply as ended."""

        def write() -> None:
            with self._store.one_transaction():
                for reply, records in additions:
                    self._add(reply, records)
            if any(isinstance(record, Finished) for _, records in additions for record in records):
                self._refresh_past()

        return self.in_order(write)

    def measured(self, reply: Reply) -> Future[None] | None:
        """Store the final speedup of an ended reply."""
        return self.append([(reply, [reply.measured])]) if reply.measured is not None else None

    def finish(self, reply: Reply, reason: str) -> Future[None]:
        """Mark a reply as ended that got no `Finished`."""
        return self._to_row(reply, lambda row: self._store.finish_message(row, reason))

    def choose(self, message: Node) -> Future[None]:
        """Continue the chat with this reply, or this version of a prompt."""
        return self._to_row(message, self._store.choose)

    def set_tokens(self, prompt: Prompt, name: str, tokens: int) -> Future[None]:
        """Store the length of an attachment of a prompt."""
        return self._to_row(prompt, lambda row: self._store.attachments.set_tokens(row, name, tokens))

    def set_options(self, conversation: Conversation) -> Future[None]:
        """Store the chat's own settings, unless the chat is stored later, with its first prompt."""

        def write() -> None:
            if conversation.chat is not None:
                self._store.change_chat(conversation.chat.id, **_options(conversation))

        return self.in_order(write)

    def find(self, text: str) -> Future[list[Hit] | None]:
        """Places where all these words occur in titles, prompts with their attachments, and replies."""

        def read() -> list[Hit]:
            self._store.search.update()
            return self._store.search.find(text)

        return self.do(read)

    def index(self) -> Future[None]:
        """Update the search index, in small steps between other jobs."""

        def step() -> None:
            if self._store.search.update():
                self.index()

        return self.do(step)

    def prompts(self) -> Future[list[str] | None]:
        """The newest prompts of all chats."""
        return self.do(lambda: self._store.prompts(PROMPTS))

    def models(self) -> Future[list[str] | None]:
        """The models of all replies, last used first."""
        return self.do(lambda: self._store.models())

    def change(self, chat: Chat, **values: object) -> Future[None]:
        """Change a chat, see `Store.change_chat`."""

        def write() -> None:
            self._store.change_chat(chat.id, **values)
            if "deleted" in values:
                self._refresh_past()

        return self.do(write)

    def fork(self, conversation: Conversation, prompts: Sequence[Prompt], title: str) -> Future[Chat | None]:
        """A new chat with the settings of a conversation, and copies of these prompts and of their chosen replies."""

        def write() -> Chat | None:
            if self._backlog:
                raise AppError("the chat is not forked: its last messages are not stored yet")
            rows = [(prompt.row, prompt.reply.row if prompt.reply else None) for prompt in prompts]
            with self._store.one_transaction():
                chat = self._store.fork_chat([row for pair in rows for row in pair if row is not None], title)
                self._store.change_chat(chat.id, **_options(conversation))
            return self._store.chat_of(chat.uid)

        return self.do(write)

    def take_back(
        self, conversation: Conversation, prompts: list[Prompt], unsent: Unsent | None = None
    ) -> Future[None]:
        """Remove unanswered prompts, and a chat without others; `unsent`, if given, becomes the unsent text.

        A text of the new chat stays, before it.
        """

        def write() -> None:
            chat = conversation.chat
            with self._store.one_transaction():
                for prompt in reversed(prompts):  # each follows the one before it
                    if prompt.row is not None:
                        self._store.take_back(prompt.row)
                if prompts and chat is not None and not self._store.messages(chat.id):
                    self._store.change_chat(chat.id, deleted=True)
                    chat = None
                if unsent is not None and chat is not None:
                    self._store.unsent.keep(chat.id, *unsent)
                elif unsent is not None:
                    texts, attached = self._store.unsent.texts(), self._store.unsent.attachments()
                    other = texts.get(NO_CHAT, ""), attached.get(NO_CHAT, ())
                    self._store.unsent.keep(NO_CHAT, *joined(other, unsent))
            if chat is None:
                conversation.chat = None

        return self.in_order(write)

    def unsent(self) -> Future[tuple[dict[int, str], dict[int, tuple[Attachment, ...]]] | None]:
        """Unsent texts and their attachments by chat id."""
        return self.do(lambda: (self._store.unsent.texts(), self._store.unsent.attachments()))

    def keep_unsent(self, chat_id: int, text: str, attachments: Sequence[Attachment] | None) -> Future[None]:
        """Store the unsent text of a chat; attachments of None leave the stored ones."""
        return self.in_order(lambda: self._store.unsent.keep(chat_id, text, attachments))

    def close(self) -> None:
        """Retry what is not stored yet, and close the store."""
        super().close()
        if self._past is not None:
            self._past.close()
        self._store.close()

    def _refresh_past(self) -> None:
        if self._past is not None:
            self._past.refresh()

    def _add(self, reply: Reply, records: Sequence[Record | Measured]) -> None:
        """Store records of a reply; without a row its start could not be stored, which was reported then."""
        if reply.row is None:
            return
        self._append(reply.row, records, reply.carried)
        for record in records:
            if isinstance(record, Finished):
                self._store.finish_message(reply.row, record.reason.value)

    def _append(self, row: int, records: Sequence[Record | Measured], carried: int = 0) -> None:
        """Append records to a stored reply, and the text that they add to it."""
        parts = [part for record in records for part in parts_of(record, carried)]
        self._store.append_rounds(row, parts, map(to_json, records))

    def _to_row(self, message: Node, write: Callable[[int], None]) -> Future[None]:
        """Write to the row of a message in order, if it is stored by then."""
        return self.in_order(lambda: None if message.row is None else write(message.row))


def _options(conversation: Conversation) -> dict[str, object]:
    """The columns of a chat's own settings."""
    servers = "\n".join(conversation.servers)
    return {"system": conversation.system or "", "thinking": conversation.thinking, "servers": servers}


class NoArchive(Archive):
    """An archive without a store: no job is run, and the result of each is None."""

    def __init__(self) -> None:
        """Create it, without a thread."""

    def do(self, job: Callable[[], T]) -> Future[T | None]:  # noqa: ARG002 the base class names it
        """Run no job; its result is None."""
        result: Future[T | None] = Future()
        result.set_result(None)
        return result

    def close(self) -> None:
        """There is no thread to end."""
