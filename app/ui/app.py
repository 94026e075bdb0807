"""The app: it draws its first frame before anything else, then loads, then answers.

What blocks runs in threads: preparing the session, and everything that touches the store (`app.chat.archive`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from textual import work
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.driver import Driver
from textual.events import TextSelected
from textual.message import Message
from textual.notifications import Notify
from textual.screen import ModalScreen, Screen

from specchat.app.chat.request_manager import RequestManager
from specchat.app.chat.session import Session
from specchat.app.errors import AppError
from specchat.app.sources.player import Player
from specchat.app.sources.probe import Probe
from specchat.app.sources.source import Source
from specchat.app.sources.stepper import Stepper
from specchat.app.ui import themes
from specchat.app.ui.actions.actions import Actions
from specchat.app.ui.actions.engine_records import EngineRecords
from specchat.app.ui.actions.models import MakeSource
from specchat.app.ui.actions.side_by_side import MakeDuet
from specchat.app.ui.keys import named
from specchat.app.ui.load_meter import LoadMeter
from specchat.app.ui.notices import say
from specchat.app.ui.own_files import own_files
from specchat.app.ui.pump import Pump
from specchat.app.ui.screens.candidates import CandidatesScreen
from specchat.app.ui.screens.chat import ChatScreen
from specchat.app.ui.screens.side_by_side import SideScreen
from specchat.app.ui.theme_choice import ThemeChoice
from specchat.app.ui.widgets.bars import NoticeLine
from specchat.app.ui.widgets.chat_list import ChatList
from specchat.app.ui.widgets.transcript_messages import (
    AttachmentRequested,
    CodeRequested,
    CopyRequested,
    ForkRequested,
    LinkRequested,
    VersionRequested,
)
from specchat.engine import EngineError

STYLES = Path(__file__).parent / "styles"
WRITE_S = 0.25
"""How often the unsent text is stored: a kill loses this much of it. Replies are stored before they are shown."""


class SpecChat(App[None]):
    """Chat with a model and watch it being sped up; or, with a player, watch a recorded trace.

    What it does is in objects (`app.ui.actions`); here they are put together, and Textual's messages and actions are
    handed to them.
    """

    TITLE = "specchat"
    CSS_PATH = [  # noqa: RUF012
        STYLES / f"{name}.tcss"
        for name in (
            "chat",
            "dialogs",
            "views",
            "controls",
            "candidates",
            "messages",
            "models",
            "side",
            "tour",
            "alignment",
        )
    ]
    BINDINGS: ClassVar[list[BindingType]] = named(
        "app",
        Binding("ctrl+q", "quit", "quit", key_display="^q", priority=True),
        Binding("ctrl+p", "command_palette", "palette", show=False, priority=True),
    )

    @dataclass
    class Prepared(Message):
        """The session is there; or there is none, for this reason."""

        session: Session | str

    def __init__(
        self,
        prepare: Callable[[], Session],
        *,
        player: Player | None = None,
        theme: str = "",
        pictures: Path | None = None,
        now: Callable[[], float] = time.time,
        probe: Probe | None = None,
        make_duet: MakeDuet | None = None,
        make_source: MakeSource | None = None,
        begin_side_by_side: bool = False,
    ) -> None:
        """Make the app; nothing runs yet.

        Args:
            prepare: Makes the session; called in a thread once the first frame is on screen. What it raises
                (`EngineError`, `AppError`) is shown.
            player: The session's source, if it is a player: the app then shows a replay.
            theme: A theme's name; empty for specchat's own.
            pictures: The folder that pictures and exported chats go to; specchat's own by default.
            now: The time of day, for the ages of chats.
            probe: Measures what the interface and the GPU do; without one the panel does not say.
            make_duet: Makes the lanes of the side-by-side mode; without it there is none.
            make_source: Makes an engine for settings; without it the models stay.
            begin_side_by_side: Whether that mode is opened at the start.
        """
        super().__init__()
        self._disable_notifications = True  # as toasts: `on_notify` shows them
        self._prepare = prepare
        self._player = player
        self._probe = probe
        self._begin_side_by_side = begin_side_by_side
        self.prepared = asyncio.Event()
        """Set once the session is connected, or has been said to be missing."""
        self.stepper: Stepper | None = None
        """Holds rounds back while they are stepped through; there once the session is."""
        self.requests = RequestManager()
        self.chat_screen = ChatScreen(self.requests, lambda: self.pump.run(), player)
        self.actions = Actions(
            self, self.chat_screen, self.requests, now, pictures, make_duet, make_source, replaying=player is not None
        )
        self._records = EngineRecords(self.actions.scope, self.actions.settings, self._engine_ready, probe)
        self.pump = Pump(self, self.actions.chats, self._records.handle, self._draw)
        self.chat_screen.set_pace(self.pump.pace)
        self._theme_choice = ThemeChoice(self, theme)

    def get_driver_class(self) -> type[Driver]:
        """Textual's driver, on Linux and macOS with our own input and endings."""
        found = super().get_driver_class()
        if found.__name__ != "LinuxDriver":
            return found
        from specchat.app.ui.terminal_driver import TerminalDriver

        return TerminalDriver

    def get_default_screen(self) -> ChatScreen:
        """The chat is the first screen and stays below all others."""
        return self.chat_screen

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
            session: Session | str = self._prepare()
        except (EngineError, AppError) as error:
            session = str(error)
        except Exception as error:
            session = f"specchat could not start ({type(error).__name__}: {error})"
        self.post_message(self.Prepared(session))

    def on_spec_chat_prepared(self, event: Prepared) -> None:
        """Connect everything, and begin to drain; or say why not, as every prompt will be answered."""
        if isinstance(event.session, str):
            self._records.fail(event.session)
        elif self.is_running:  # else the user has left meanwhile
            self._connect(event.session)
        self.prepared.set()

    def _connect(self, session: Session) -> None:
        """Use this session from here on."""
        self.actions.connect(session)
        notices = [*session.notices, *own_files(self, session.settings_file)]
        if session.settings is not None:
            self._theme_choice.change(session.settings.theme)
            self.chat_screen.show_rejected(session.settings.rejected)
        if notices:
            say(self, " · ".join(notices), "warning")
        self._theme_choice.keep(self.actions.settings.preferences)
        self.actions.models.use = self._step_through
        self.requests.connect(replace(session, source=self._step_through(session.source)), self.actions.scope.archive)
        self.actions.chats.list()
        self.pump.start()
        self.set_interval(WRITE_S, self.actions.chats.write)
        self.actions.chats.restore_unsent()
        self.actions.search.begin()
        if self._probe is not None:
            LoadMeter(self, self._probe, self.chat_screen.status.show_load).start()
        if self._begin_side_by_side:
            self.actions.side.open()

    async def on_unmount(self) -> None:
        """However the app ends, what was said is stored, and what was being typed."""
        await self.actions.side.close()
        self.actions.models.close()
        self.actions.chats.write()
        await asyncio.to_thread(self.requests.close)
        if self.actions.settings.preferences is not None:
            await asyncio.to_thread(self.actions.settings.preferences.close)

    def on_notify(self, event: Notify) -> None:
        """Show a notice on the topmost screen that has a place for it."""
        lines = [line for screen in self.screen_stack for line in screen.query(NoticeLine)]
        if lines:
            lines[-1].show(event.notification)

    # With every frame

    def _draw(self) -> None:
        """Show what has come.

        Only what can be seen: Textual draws all of a screen again for each change of one that is covered by it. A
        screen whose widgets are not styled yet cannot be drawn, nor one that loses its widgets while the app closes.
        """
        if not self.is_running:
            return
        if self.stepper is not None:
            self.requests.running.show_steps(self.stepper.shown)
        shown = next((screen for screen in reversed(self.screen_stack) if not isinstance(screen, ModalScreen)), None)
        if isinstance(shown, ChatScreen | CandidatesScreen) and shown.is_mounted:
            shown.update()
        self.actions.models.update()
        if self.actions.chats.list_is_old:
            self.actions.chats.list()

    def _step_through(self, source: Source) -> Source:
        """The source behind one whose rounds can be held back."""
        self.stepper = Stepper(source)
        self.chat_screen.connect(self.stepper)
        return self.stepper

    def _engine_ready(self, device: str) -> None:
        """Draw as often as suits the engine's device, and let it draft from other chats."""
        if self._player is None:  # nothing is computed in a replay
            self.pump.suit(device)
            self.actions.draft_from_chats()

    # What the user does

    def on_chat_list_chosen(self, event: ChatList.Chosen) -> None:
        """Open a chat."""
        self.actions.chats.open(event.chat)

    def on_chat_list_rename_requested(self, event: ChatList.RenameRequested) -> None:
        """Ask for another title."""
        self.actions.chats.rename(event.chat)

    def on_chat_list_delete_requested(self, event: ChatList.DeleteRequested) -> None:
        """Delete a chat."""
        self.actions.chats.delete(event.chat)

    def on_chat_list_pin_requested(self, event: ChatList.PinRequested) -> None:
        """Pin or unpin a chat."""
        self.actions.chats.pin(event.chat)

    def on_chat_list_undo_requested(self) -> None:
        """Restore the chat that was deleted last."""
        self.actions.chats.undo_delete()

    def on_chat_screen_chat_begun(self) -> None:
        """The empty chat is not in the list yet: nothing is marked as open."""
        self.actions.chats.list()

    def on_chat_screen_command_entered(self, event: ChatScreen.CommandEntered) -> None:
        """Run a command; a line that is wrong comes back to be corrected."""
        if not self.actions.commands.run(event.line):
            self.chat_screen.put(event.line)

    def on_composer_help_requested(self) -> None:
        """A question mark in an empty composer."""
        self.actions.views.open("keys")

    def on_transcript_fork_requested(self, event: ForkRequested) -> None:
        """Take another way at a token."""
        self.actions.tree.fork_token(event.spot)

    def on_transcript_version_requested(self, event: VersionRequested) -> None:
        """A click on the marks of the versions."""
        (self.actions.tree.show_reply if event.of_reply else self.actions.tree.show_version)(event.turn, event.step)

    def on_transcript_copy_requested(self, event: CopyRequested) -> None:
        """A click below a reply."""
        self.copy_to_clipboard((event.reply.answer or event.reply.text).strip())

    def on_transcript_code_requested(self, event: CodeRequested) -> None:
        """A click above a code block."""
        self.actions.reading.copy_code(event.number, event.reply)

    def on_transcript_link_requested(self, event: LinkRequested) -> None:
        """A click on a link."""
        self.actions.reading.open_address(event.address)

    def on_transcript_attachment_requested(self, event: AttachmentRequested) -> None:
        """A click on what was sent along with a prompt."""
        self.actions.attachments.open(event.attachment)

    def on_text_selected(self, event: TextSelected) -> None:  # noqa: ARG002 the handler's signature
        """Text was selected with the mouse."""
        self.actions.clipboard.tell_of_selection()

    def copy_to_clipboard(self, text: str) -> None:
        """Hand a text to the terminal, and keep it in a file."""
        super().copy_to_clipboard(text)
        self.actions.clipboard.keep(text)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """What the palette offers."""
        if isinstance(screen, ChatScreen):
            replaying, side_by_side = self._player is not None, self.actions.side.offered
            yield from self.actions.palette.of_chat(screen, replaying=replaying, side_by_side=side_by_side)
        elif isinstance(screen, SideScreen):
            yield from self.actions.palette.of_side_by_side(screen)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hide what is of no use here."""
        if action == "open":
            (view,) = parameters
            return self.actions.side.offered if view == "side_by_side" else self.actions.views.offered(str(view))
        return super().check_action(action, parameters)

    def action_help_quit(self) -> None:
        """What ^c does in most programs, and does not do here while no text is selected."""
        screen = self.screen
        busy = isinstance(screen, ChatScreen | SideScreen) and screen.check_action("stop", ())
        stops = "esc stops the reply · " if busy else "^x stops all · " if isinstance(screen, CandidatesScreen) else ""
        say(self, f"{stops}^q quits")

    def action_copy_code(self, number: int) -> None:
        """A code block of the replies in sight."""
        self.actions.reading.copy_code(number)

    def action_open(self, view: str) -> None:
        """Open one of the app's views, by name."""
        self.actions.views.open(view)
