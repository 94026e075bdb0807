"""The list of chats: opens, renames, deletes and restores them, and stores what is typed and not yet sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from specchat.app.chat.conversation import Conversation
from specchat.app.chat.reply import Stage
from specchat.app.sanitize import escape_controls
from specchat.app.storage.store import Chat
from specchat.app.ui.actions.scope import ActionScope
from specchat.app.ui.background import run_in_background
from specchat.app.ui.notices import say
from specchat.app.ui.screens.rename import RenameScreen
from specchat.engine import Record


class ChatActions:
    """What the app does with stored chats.

    Args:
        scope: What it acts on.
        now: The time of day in seconds since 1970, for the ages of chats.
        opened: Called with each stored chat that is shown.
    """

    def __init__(self, scope: ActionScope, now: Callable[[], float], opened: Callable[[Conversation], None]) -> None:
        self._scope = scope
        self._now = now
        self._opened = opened
        self._deleted: list[Chat] = []
        self._listed = 0
        """`RequestManager.changes` when the list of chats was last shown."""

    @property
    def can_undo(self) -> bool:
        """Whether a deleted chat can be restored."""
        return bool(self._deleted)

    @property
    def list_is_old(self) -> bool:
        """Whether a reply has begun or ended since the list was shown."""
        return self._scope.requests.changes != self._listed

    def list(self) -> None:
        """Show the list as it now is."""
        run_in_background(self._scope.app, self._list, "list")

    def open(self, chat: Chat) -> None:
        """Show a chat; one that is being answered is shown as it is."""
        run_in_background(self._scope.app, partial(self._open_chosen, chat), "open")

    def rename(self, chat: Chat) -> None:
        """Ask for another title, and store it."""
        run_in_background(self._scope.app, partial(self._rename, chat), "rename")

    def delete(self, chat: Chat) -> None:
        """Delete a chat, and say how to undo it."""
        if self._scope.archive is None:
            return
        conversation = self._scope.requests.active.of_chat(chat.id)
        if conversation is not None:
            self._scope.requests.abandon(conversation)
        self._scope.archive.delete(chat)
        self._deleted.append(chat)
        self._scope.screen.leave(chat)
        say(self._scope.app, f"deleted “{escape_controls(chat.title)}” · u in the list brings it back")
        self.list()

    def pin(self, chat: Chat) -> None:
        """Let a chat stand above the others; one that does, among them again."""
        if self._scope.archive is not None:
            self._scope.archive.pin(chat, not chat.pinned)
            shown = self._scope.screen.conversation
            if shown.chat is not None and shown.chat.id == chat.id:
                shown.chat = replace(shown.chat, pinned=not chat.pinned)
            say(self._scope.app, f"{'unpinned' if chat.pinned else 'pinned'} “{escape_controls(chat.title)}”")
            self.list()

    def pin_shown(self) -> None:
        """Pin or unpin the chat that is open."""
        if (chat := self._scope.screen.conversation.chat) is not None:
            self.pin(chat)
        else:
            say(self._scope.app, "this chat has no messages yet", "warning")

    def undo_delete(self) -> None:
        """Restore the chat that was deleted last."""
        if self._scope.archive is not None and self._deleted:
            self._scope.archive.restore(self._deleted.pop())
            self.list()

    def drain(self) -> Iterable[Record]:
        """Hand new records to their replies; gives those that concern the engine as a whole."""
        return self._scope.requests.drain()

    @property
    def stage(self) -> Stage | None:
        """How far the running reply has got that is furthest; None where none runs."""
        return self._scope.requests.running.stage

    def write(self) -> None:
        """Store what is typed and not sent, where it has changed since the last call."""
        if self._scope.archive is not None:
            for chat_id, text, attachments in self._scope.screen.writing.unsent.changes():
                self._scope.archive.keep_unsent(chat_id, text, attachments)

    def restore_unsent(self) -> None:
        """Put what was typed and not sent when specchat ended into the composers of its chats."""
        run_in_background(self._scope.app, self._restore_unsent, "unsent")

    async def _list(self) -> None:
        self._listed = self._scope.requests.changes
        if self._scope.archive is None:
            return
        chats = await asyncio.wrap_future(self._scope.archive.chats())
        if chats is not None:
            if self._scope.screen.conversation.chat is not None:
                self._scope.requests.active.seen(self._scope.screen.conversation.chat)
            self._scope.screen.show_chats(chats, self._scope.requests.active.marks, self._now())

    async def show(self, chat_id: int) -> Conversation | None:
        """Show a chat by its row, and give it; None where it is gone."""
        opened = self._scope.screen.conversation
        if opened.chat is not None and opened.chat.id == chat_id:
            return opened
        chats = await asyncio.wrap_future(self._scope.archive.chats()) if self._scope.archive is not None else None
        chat = next((chat for chat in chats or () if chat.id == chat_id), None)
        return None if chat is None else await self._open(chat)

    async def _open_chosen(self, chat: Chat) -> None:
        await self._open(chat)

    async def _open(self, chat: Chat) -> Conversation | None:
        conversation = self._scope.requests.active.of_chat(chat.id)
        if conversation is None and self._scope.archive is not None:
            conversation = await asyncio.wrap_future(self._scope.archive.open(chat))
        if conversation is not None:
            self._scope.screen.show(conversation)
            self._opened(conversation)
            self.list()
        return conversation

    async def _rename(self, chat: Chat) -> None:
        title = await self._scope.app.push_screen_wait(RenameScreen(chat.title))
        if title and self._scope.archive is not None:
            await asyncio.wrap_future(self._scope.archive.rename(chat, title))
            shown = self._scope.screen.conversation
            if shown.chat is not None and shown.chat.id == chat.id:
                shown.chat = replace(shown.chat, title=title)
            self.list()

    async def _restore_unsent(self) -> None:
        stored = await asyncio.wrap_future(self._scope.archive.unsent()) if self._scope.archive is not None else None
        if stored is not None and stored[0]:
            self._scope.screen.writing.restore(*stored)
