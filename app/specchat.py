"""The app: it draws its first frame before anything else, then loads, then answers.

The engine is drained 30 times a second here and nowhere else. What blocks runs in threads: preparing the session, and
everything that touches the store (`app.archive`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from textual import work
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.notifications import SeverityLevel
from textual.screen import Screen

from app import themes
from app.archive import Archive
from app.conversation import Conversation
from app.errors import AppError
from app.exchange import Exchange
from app.offers import offers, offers_side_by_side
from app.picture import write_new
from app.player import Player
from app.sanitize import visible
from app.screens.chat import ChatScreen
from app.screens.help import HelpScreen
from app.screens.rename import RenameScreen
from app.screens.side_by_side import SideScreen
from app.session import Session
from app.side import MakeDuet, SideBySide
from app.store import Chat
from app.widgets.chat_list import ChatList
from engine import Died, EngineError, Loading, Notice, Ready, Request

STYLES = Path(__file__).parent / "styles"
DRAIN_S = 1 / 30
WRITE_S = 0.25
"""A kill loses what came after the last write: this much at most."""
NOTICE_S = 8.0


class SpecChat(App[None]):
    """Chat with a model and watch it being sped up; or, with a player, watch a recorded trace."""

    TITLE = "specchat"
    CSS_PATH = [STYLES / "chat.tcss", STYLES / "dialogs.tcss", STYLES / "side.tcss"]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+q", "quit", "quit", key_display="^q", priority=True),
    ]

    @dataclass
    class Prepared(Message):
        """The session is there."""

        session: Session

    @dataclass
    class Unprepared(Message):
        """There is no session, for this reason."""

        sentence: str

    @dataclass
    class StoreFailed(Message):
        """Something could not be stored or read."""

        sentence: str

    def __init__(
        self,
        prepare: Callable[[], Session],
        *,
        player: Player | None = None,
        theme: str = "",
        pictures: Path | None = None,
        now: Callable[[], float] = time.time,
        make_duet: MakeDuet | None = None,
        begin_side_by_side: bool = False,
    ) -> None:
        """Make the app; nothing runs yet.

        Args:
            prepare: Makes the session; called in a thread once the first frame is on screen. What it raises
                (`EngineError`, `AppError`) is shown.
            player: The session's source, if it is a player: the app then shows a replay.
            theme: A theme's name; empty for specchat's own.
            pictures: The folder that pictures of the screen go to; the current one by default.
            now: The time of day, for the ages of chats.
            make_duet: Makes the lanes of the side-by-side mode; without it there is none.
            begin_side_by_side: Whether that mode is opened at the start.
        """
        super().__init__()
        self._prepare = prepare
        self.exchange = Exchange()
        self._player = player
        self._pictures = pictures
        self._now = now
        self.side = SideBySide(self, make_duet)
        self._begin_side_by_side = begin_side_by_side
        self._archive: Archive | None = None
        self._deleted: list[Chat] = []
        self._target = ""
        self._drafting: tuple[str, int | None, bool] = ("", 0, True)
        """Target, drafter and γ as last shown."""
        self._listed = 0
        """`Exchange.changes` when the list of chats was last shown."""
        self._screen_of_chat = ChatScreen(player)
        self.register_theme(themes.DARK)
        self.register_theme(themes.LIGHT)
        self._begin_with(theme)

    def get_default_screen(self) -> ChatScreen:
        """The chat is the first screen and stays below all others."""
        return self._screen_of_chat

    def get_css_variables(self) -> dict[str, str]:
        """Textual's variables and our own, whatever the theme."""
        variables = super().get_css_variables()
        return variables | themes.colours(self.current_theme, variables)

    def on_mount(self) -> None:
        """Paint first."""
        self.call_after_refresh(self._load)

    # Getting ready

    @work(thread=True, exclusive=True, exit_on_error=False, group="prepare")
    def _load(self) -> None:
        try:
            self.post_message(self.Prepared(self._prepare()))
        except (EngineError, AppError) as error:
            self.post_message(self.Unprepared(str(error)))
        except Exception as error:
            self.post_message(self.Unprepared(f"specchat could not start ({type(error).__name__}: {error})"))

    def on_spec_chat_prepared(self, event: Prepared) -> None:
        """Connect everything, and begin to drain."""
        session = event.session
        if session.store is not None:
            self._archive = Archive(session.store, self._store_failed)
        if session.settings is not None:
            settings = session.settings
            if settings.theme in self.available_themes and settings.theme != self.theme:
                self.theme = settings.theme
            sampling = settings.sampling()
            self._show_models(Path(settings.target).name, settings.drafter, settings.gamma, lossless=sampling.lossless)
            self._screen_of_chat.show_rejected(settings.show_rejected)
        for sentence in session.notices:
            self._notice(sentence, severity="warning")
        self.exchange.connect(session, self._archive)
        self.side.connect(session.settings, self._archive)
        self.list_chats()
        self.set_interval(DRAIN_S, self.pump)
        self.set_interval(WRITE_S, self.exchange.write)
        if self._begin_side_by_side:
            self.side.open()

    def on_spec_chat_unprepared(self, event: Unprepared) -> None:
        """Say why; prompts get the same sentence."""
        self._fail(event.sentence)

    def pump(self) -> None:
        """Take in what the source has said, and show it."""
        for record in self.exchange.drain():
            match record:
                case Loading():
                    self._screen_of_chat.show_loading(record)
                case Ready():
                    self._become_ready(record)
                case Notice():
                    self._notice(record.text)
                case Died():
                    self._fail(record.message)
                case Request():
                    self._show_models(self._target, record.drafter, record.gamma, lossless=record.sampling.lossless)
                    self.exchange.follow(self._screen_of_chat.conversation, record)
        self._screen_of_chat.update()
        if self.exchange.changes != self._listed:
            self.list_chats()

    def on_spec_chat_store_failed(self, event: StoreFailed) -> None:
        """The chat goes on; the user knows that it is not kept."""
        self._notice(event.sentence, severity="error")

    async def on_unmount(self) -> None:
        """However the app ends, what was said is stored."""
        await self.side.close()
        await asyncio.to_thread(self.exchange.close)

    # Chats

    @work(exclusive=True, group="list", exit_on_error=False)
    async def list_chats(self) -> None:
        """Show the list as it now is."""
        self._listed = self.exchange.changes
        if self._archive is None:
            return
        chats = await asyncio.wrap_future(self._archive.chats())
        if chats is not None:
            self._screen_of_chat.show_chats(chats, self.exchange.busy_chats, self._now())

    @work(exclusive=True, group="open", exit_on_error=False)
    async def on_chat_list_chosen(self, event: ChatList.Chosen) -> None:
        """Open a chat; one that is answering is shown as it is."""
        conversation = self.exchange.busy_conversation(event.chat.id)
        if conversation is None and self._archive is not None:
            conversation = await asyncio.wrap_future(self._archive.open(event.chat))
        if conversation is not None:
            self._screen_of_chat.show(conversation)
            self.list_chats()

    @work(exclusive=True, group="rename", exit_on_error=False)
    async def on_chat_list_rename_wanted(self, event: ChatList.RenameWanted) -> None:
        """Ask for the title, then keep it."""
        title = await self.push_screen_wait(RenameScreen(event.chat.title))
        if title and self._archive is not None:
            await asyncio.wrap_future(self._archive.rename(event.chat, title))
            self._screen_of_chat.rename(event.chat, title)
            self.list_chats()

    def on_chat_list_delete_wanted(self, event: ChatList.DeleteWanted) -> None:
        """Delete, and say how to undo it."""
        if self._archive is None:
            return
        conversation = self.exchange.busy_conversation(event.chat.id)
        if conversation is not None:
            self.exchange.stop(conversation)
        self._archive.delete(event.chat)
        self._deleted.append(event.chat)
        self._screen_of_chat.leave(event.chat)
        self._notice(f"deleted “{visible(event.chat.title)}” · u in the list brings it back")
        self.list_chats()

    def on_chat_list_undo_wanted(self) -> None:
        """Bring the last deleted chat back."""
        self.action_undo_delete()

    def action_undo_delete(self) -> None:
        """Bring the last deleted chat back."""
        if self._archive is not None and self._deleted:
            self._archive.restore(self._deleted.pop())
            self.list_chats()

    # Commands

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """What the palette offers."""
        if screen is self._screen_of_chat:
            yield from offers(self, self._screen_of_chat, replaying=self._player is not None)
        elif isinstance(screen, SideScreen):
            yield from offers_side_by_side(self, screen)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        """A replay has nobody to ask."""
        return self.side.offered if action == "side_by_side" else True

    @property
    def can_undo(self) -> bool:
        """Whether a deleted chat can be brought back."""
        return bool(self._deleted)

    def action_side_by_side(self) -> None:
        """The same prompt with and without drafts, each on a clock of its own."""
        self.side.open()

    def come_back(self, conversation: Conversation | None) -> None:
        """From the side-by-side mode, with the lane to go on from if there is one."""
        if conversation is not None:
            self._screen_of_chat.show(conversation)
        self.list_chats()

    def action_help(self) -> None:
        """Keys, fates, figures."""
        self.push_screen(HelpScreen(replaying=self._player is not None))

    def action_save_picture(self) -> None:
        """Write the screen to the first free file name; nothing is ever overwritten."""
        folder = self._pictures or Path.cwd()
        picture = self.export_screenshot(title="specchat")
        try:
            path = write_new(folder, picture)
        except OSError as error:
            self._notice(f"no picture: {folder} cannot be written ({error.strerror or error})", severity="error")
        else:
            self._notice(f"picture saved as {path}")

    def _begin_with(self, theme: str) -> None:
        """Set the first theme. One of our own is set quietly, so that the first frame is styled only once."""
        own = theme or themes.DARK.name
        if own not in (themes.DARK.name, themes.LIGHT.name):
            self.theme = theme if theme in self.available_themes else themes.DARK.name
            return
        self.set_reactive(App.theme, own)
        self.set_class(self.current_theme.dark, "-dark-mode", update=False)
        self.set_class(not self.current_theme.dark, "-light-mode", update=False)
        self.stylesheet.set_variables(self.get_css_variables())

    def _store_failed(self, sentence: str) -> None:
        self.post_message(self.StoreFailed(sentence))

    def _become_ready(self, ready: Ready) -> None:
        self._target = ready.target
        self._show_drafting()
        self._screen_of_chat.show_ready(ready)
        self.exchange.ready()

    def _show_models(self, target: str, drafter: str, gamma: int | None, *, lossless: bool) -> None:
        self._target, self._drafting = target, (drafter, gamma, lossless)
        self._show_drafting()

    def _show_drafting(self) -> None:
        drafter, gamma, lossless = self._drafting
        self._screen_of_chat.show_models(self._target, drafter, gamma, lossless=lossless)

    def _fail(self, sentence: str) -> None:
        self._screen_of_chat.show_loading(sentence, failed=True)
        if self._screen_of_chat.conversation.turns:  # else the whole screen says it
            self._notice(sentence, severity="error")
        self.exchange.fail(sentence)

    def _notice(self, sentence: str, severity: SeverityLevel = "information") -> None:
        self.notify(visible(sentence), severity=severity, timeout=NOTICE_S, markup=False)
