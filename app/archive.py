"""Writes what happens to the store, in order, in a thread of its own, so that the interface never waits for a disk."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from app.conversation import Conversation, Turn, stored_conversation
from app.errors import AppError
from app.reply import Reply
from app.store import Chat, Store
from engine import Record, to_json

T = TypeVar("T")


class Archive:
    """The store behind one writing thread: jobs run in the order they were given.

    `on_error` gets one sentence for each job that failed, and is called in the writing thread.
    """

    def __init__(self, store: Store, on_error: Callable[[str], None]) -> None:
        self._store = store
        self._on_error = on_error
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="archive")

    def chats(self) -> Future[list[Chat] | None]:
        """Every chat, newest first."""
        return self._do(self._store.chats)

    def open(self, chat: Chat) -> Future[Conversation | None]:
        """A chat as it was stored."""
        return self._do(lambda: stored_conversation(chat, self._store.messages(chat.id)))

    def prompt(self, conversation: Conversation, turn: Turn) -> Future[None]:
        """Store a prompt as soon as it is sent; the first one of a conversation makes its chat."""

        def write() -> None:
            if conversation.chat is None:
                conversation.chat = self._store.create_chat(conversation.title)
            turn.prompt_id = self._store.add_message(conversation.chat.id, "user", turn.prompt)

        return self._do(write)

    def begin(self, conversation: Conversation, turn: Turn) -> Future[None]:
        """Store that the turn's replies begin."""

        def write() -> None:
            if conversation.chat is None or turn.prompt_id is None:  # could not be stored: that was said then
                return
            for reply in turn.replies:
                reply.message_id = self._store.add_message(
                    conversation.chat.id, "assistant", "", answers=turn.prompt_id, chosen=reply is turn.reply
                )

        return self._do(write)

    def append(self, reply: Reply, text: str, records: list[Record]) -> None:
        """Add to a reply."""

        def write() -> None:
            if reply.message_id is not None:
                self._store.append_rounds(reply.message_id, text, [to_json(record) for record in records])

        self._do(write)

    def finish(self, reply: Reply, reason: str) -> Future[None]:
        """Mark a reply as ended."""

        def write() -> None:
            if reply.message_id is not None:
                self._store.finish_message(reply.message_id, reason)

        return self._do(write)

    def choose(self, reply: Reply) -> Future[None]:
        """Go on with this one of several replies."""

        def write() -> None:
            if reply.message_id is not None:
                self._store.choose(reply.message_id)

        return self._do(write)

    def take_back(self, conversation: Conversation, turns: list[Turn]) -> Future[None]:
        """Remove prompts that were never asked; a chat that had nothing else goes with them."""

        def write() -> None:
            for turn in turns:
                if turn.prompt_id is not None:
                    self._store.take_back(turn.prompt_id)
            if turns and conversation.chat is not None and not self._store.messages(conversation.chat.id):
                self._store.delete_chat(conversation.chat.id)
                conversation.chat = None

        return self._do(write)

    def draft(self) -> Future[str | None]:
        """What stood in the composer when it was last kept."""
        return self._do(self._store.draft)

    def keep_draft(self, text: str) -> Future[None]:
        """Keep what stands in the composer."""
        return self._do(lambda: self._store.keep_draft(text))

    def rename(self, chat: Chat, title: str) -> Future[None]:
        """Give a chat another title."""
        return self._do(lambda: self._store.rename_chat(chat.id, title))

    def delete(self, chat: Chat) -> Future[None]:
        """Take a chat off the list."""
        return self._do(lambda: self._store.delete_chat(chat.id))

    def restore(self, chat: Chat) -> Future[None]:
        """Put a deleted chat back."""
        return self._do(lambda: self._store.restore_chat(chat.id))

    def close(self) -> None:
        """Write what is left and close the store."""
        self._writer.shutdown(wait=True)
        self._store.close()

    def _do(self, job: Callable[[], T]) -> Future[T | None]:
        def guarded() -> T | None:
            try:
                return job()
            except AppError as error:
                self._on_error(str(error))
                return None

        return self._writer.submit(guarded)
