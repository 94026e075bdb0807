"""The app's part that keeps the list of chats: opens, renames, deletes, brings back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from textual import work
from textual.app import App
from textual.message import Message
from textual.notifications import SeverityLevel

from app.archive import Archive
from app.exchange import Exchange
from app.player import Player
from app.sanitize import visible
from app.screens.chat import ChatScreen
from app.screens.rename import RenameScreen
from app.store import Chat
from app.widgets.chat_list import ChatList

NOTICE_S = 8.0


class ChatsApp(App[None]):
    """What the app does with chats, and what all its parts share."""

    @dataclass
    class StoreFailed(Message):
        """Something could not be stored or read."""

        sentence: str

    def __init__(self, player: Player | None = None, now: Callable[[], float] = time.time) -> None:
        super().__init__()
        self.exchange = Exchange()
        self.archive: Archive | None = None
        self.chat_screen = ChatScreen(player)
        self._now = now
        self._deleted: list[Chat] = []
        self._draft = ""
        """What stood in the composer when it was last stored."""
        self._listed = 0
        """`Exchange.changes` when the list of chats was last shown."""

    @property
    def can_undo(self) -> bool:
        """Whether a deleted chat can be brought back."""
        return bool(self._deleted)

    @property
    def list_is_old(self) -> bool:
        """Whether a reply has begun or ended since the list was shown."""
        return self.exchange.changes != self._listed

    def say(self, sentence: str, severity: SeverityLevel = "information") -> None:
        """Show a notice for a while."""
        self.notify(visible(sentence), severity=severity, timeout=NOTICE_S, markup=False)

    @work(exclusive=True, group="list", exit_on_error=False)
    async def list_chats(self) -> None:
        """Show the list as it now is."""
        self._listed = self.exchange.changes
        if self.archive is None:
            return
        chats = await asyncio.wrap_future(self.archive.chats())
        if chats is not None:
            if self.chat_screen.conversation.chat is not None:
                self.exchange.seen(self.chat_screen.conversation.chat)
            self.chat_screen.show_chats(chats, self.exchange.marks, self._now())

    @work(exclusive=True, group="open", exit_on_error=False)
    async def on_chat_list_chosen(self, event: ChatList.Chosen) -> None:
        """Open a chat; one that is answering is shown as it is."""
        conversation = self.exchange.busy_conversation(event.chat.id)
        if conversation is None and self.archive is not None:
            conversation = await asyncio.wrap_future(self.archive.open(event.chat))
        if conversation is not None:
            self.chat_screen.show(conversation)
            self.list_chats()

    @work(exclusive=True, group="rename", exit_on_error=False)
    async def on_chat_list_rename_wanted(self, event: ChatList.RenameWanted) -> None:
        """Ask for the title, then keep it."""
        title = await self.push_screen_wait(RenameScreen(event.chat.title))
        if title and self.archive is not None:
            await asyncio.wrap_future(self.archive.rename(event.chat, title))
            self.chat_screen.rename(event.chat, title)
            self.list_chats()

    def on_chat_list_delete_wanted(self, event: ChatList.DeleteWanted) -> None:
        """Delete, and say how to undo it."""
        if self.archive is None:
            return
        conversation = self.exchange.busy_conversation(event.chat.id)
        if conversation is not None:
            self.exchange.abandon(conversation)
        self.archive.delete(event.chat)
        self._deleted.append(event.chat)
        self.chat_screen.leave(event.chat)
        self.say(f"deleted “{visible(event.chat.title)}” · u in the list brings it back")
        self.list_chats()

    def write(self) -> None:
        """Store what has come of replies, and what stands in the composer, since the last call."""
        self.exchange.write()
        text = self.chat_screen.unsent
        if self.archive is not None and text != self._draft:
            self._draft = text
            self.archive.keep_draft(text)

    @work(exclusive=True, group="draft", exit_on_error=False)
    async def bring_draft(self) -> None:
        """What was typed and not sent when specchat ended is there again."""
        text = await asyncio.wrap_future(self.archive.draft()) if self.archive is not None else None
        if text and not self.chat_screen.unsent:
            self._draft = text
            self.chat_screen.put(text)

    def on_chat_list_undo_wanted(self) -> None:
        """Bring the last deleted chat back."""
        self.action_undo_delete()

    def action_undo_delete(self) -> None:
        """Bring the last deleted chat back."""
        if self.archive is not None and self._deleted:
            self.archive.restore(self._deleted.pop())
            self.list_chats()
