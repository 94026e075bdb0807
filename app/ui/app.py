"""The app. It draws its first frame before it loads anything.

Blocking work runs in threads: preparing the session, and all access to the store (`app.chat.archive`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from textual import work
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.driver import Driver
from textual.events import TextSelected
from textual.notifications import Notify
from textual.screen import ModalScreen, Screen

from specchat.app.chat.request_manager import RequestManager
from specchat.app.chat.session import Session
from specchat.app.errors import AppError
from specchat.app.sources.player import Player
from specchat.app.sources.probe import Probe
from specchat.app.sources.source import Source
from specchat.app.sources.stepper import Stepper
from specchat.app.ui.actions.actions import Actions
from specchat.app.ui.actions.comparison import MakeDuet
from specchat.app.ui.actions.models import EngineRecords, MakeSource
from specchat.app.ui.keys import named
from specchat.app.ui.load_meter import LoadMeter
from specchat.app.ui.notices import say
from specchat.app.ui.own_files import own_files
from specchat.app.ui.pump import Pump
from specchat.app.ui.screens.candidates import CandidatesScreen
from specchat.app.ui.screens.chat import ChatScreen
from specchat.app.ui.themes import ThemeChoice, theme_colours
from specchat.app.ui.widgets.bars import NoticeLine
from specchat.app.ui.widgets.chat_list import ChatList
from specchat.app.ui.widgets.composer import Composer
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
"""Seconds between stores of unsent text: a kill loses this much of it. Replies are stored before they are shown."""


class SpecChat(App[None]):
    """Chat with a model and see how speculative decoding works; or, with a player, watch a recorded trace.

    Passes Textual's messages to the actions (`app.ui.actions`).
    """

    TITLE = "specchat"
    CSS_PATH = [STYLES / f"{name}.tcss" for name in ("chat", "dialogs", "views", "screens")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = named(
        "app",
        Binding("ctrl+q", "quit", "quit", key_display="^q", priority=True),
        Binding("ctrl+p", "command_palette", "palette", show=False, priority=True),
    )

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
            prepare: Makes the session; called in a thread after the first frame. `EngineError` and `AppError` are
                shown.
            player: The session's source, if it is a player: the app then shows a replay.
            theme: A theme's name; empty for specchat's own.
            pictures: The folder for pictures and exported chats; specchat's own by default.
            now: The time of day, for the ages of chats.
            probe: Measures the load of the interface and the GPU for the panel; None for no figures.
            make_duet: Makes the lanes of the side-by-side mode; None if it is not available.
            make_source: Makes an engine for settings; None if the models cannot be changed.
            begin_side_by_side: Whether to open that mode at the start.
        """
        super().__init__()
        self._disable_notifications = True  # as toasts: `on_notify` shows them
        self._prepare = prepare
        self._player = player
        self._probe = probe
        self._begin_side_by_side = begin_side_by_side
        self.prepared = asyncio.Event()
        """Set once the session is connected or has failed."""
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
        """Textual's driver; on Linux and macOS one that tolerates invalid input and hang-ups."""
        found = super().get_driver_class()
        if found.__name__ != "LinuxDriver":
            return found
        from specchat.app.ui.terminal_driver import TerminalDriver

        return TerminalDriver

    def get_default_screen(self) -> ChatScreen:
        """The chat, which stays below all other screens."""
        return self.chat_screen

    def get_css_variables(self) -> dict[str, str]:
        """Textual's variables and the colours of fates, for any theme."""
        variables = super().get_css_variables()
        return variables | theme_colours(self.current_theme, variables)

    def on_mount(self) -> None:
        """Paint first."""
        self.call_after_refresh(self._load)

    # Start and end

    @work(exclusive=True, group="prepare")
    async def _load(self) -> None:
        """Connect the session and start to process records; or show why not."""
        try:
            session = await asyncio.to_thread(self._prepare)
        except (EngineError, AppError) as error:
            self._records.fail(str(error))
        except Exception as error:
            self._records.fail(f"specchat could not start ({type(error).__name__}: {error})")
        else:
            self._connect(session)
        self.prepared.set()

    def _connect(self, session: Session) -> None:
        """Use this session."""
        self.actions.connect(session)
        notices = [*session.notices, *own_files(self, session.settings_file)]
        if session.settings is not None:
            self._theme_choice.change(session.settings.theme)
            self.chat_screen.transcript.rejected = session.settings.rejected
        if notices:
            say(self, " · ".join(notices), "warning")
        self._theme_choice.keep(self.actions.settings.preferences)
        self.actions.models.use = self._step_through
        self.requests.connect(replace(session, source=self._step_through(session.source)), self.actions.scope.archive)
        self.actions.chats.show_list()
        self.pump.start()
        self.set_interval(WRITE_S, self.actions.chats.write)
        self.actions.chats.restore_unsent()
        self.actions.chats.index()
        if self._probe is not None:
            LoadMeter(self, self._probe, self.chat_screen.widgets.show_load).start()
        if self._begin_side_by_side:
            self.action_run("side-by-side")

    async def on_unmount(self) -> None:
        """Store replies and unsent text, however the app ends."""
        await self.actions.comparison.close()
        self.actions.models.close()
        self.actions.chats.write()
        await asyncio.to_thread(self.requests.close)
        if self.actions.settings.preferences is not None:
            await asyncio.to_thread(self.actions.settings.preferences.close)

    def on_notify(self, event: Notify) -> None:
        """Show a notice on the topmost screen with a notice line."""
        lines = [line for screen in self.screen_stack for line in screen.query(NoticeLine)]
        if lines:
            lines[-1].show(event.notification)

    # With every frame

    def _draw(self) -> None:
        """Show new records.

        Only on the visible screen, because Textual redraws it completely for each change of a covered screen. Not
        before its widgets are styled, and not while the app closes.
        """
        if not self.is_running:
            return
        if (stepper := self.chat_screen.stepping.stepper) is not None:
            self.requests.running.show_steps(stepper.shown)
        shown = next((screen for screen in reversed(self.screen_stack) if not isinstance(screen, ModalScreen)), None)
        if isinstance(shown, ChatScreen | CandidatesScreen) and shown.is_mounted:
            shown.update()
        self.actions.models.update()
        self.actions.chats.refresh()

    def _step_through(self, source: Source) -> Source:
        """Wrap a source, so that its rounds can be held back."""
        self.chat_screen.stepping.stepper = stepper = Stepper(source)
        return stepper

    def _engine_ready(self, device: str) -> None:
        """Adapt the frame rate to the engine's device, and let the engine draft from other chats."""
        if self._player is None:  # nothing is computed in a replay
            self.pump.suit(device)
            self.actions.draft_from_chats()

    # Messages and actions

    def on_chat_list_chosen(self, event: ChatList.Chosen) -> None:
        """Open a chat."""
        self.actions.chats.open(event.chat)

    def on_chat_list_rename_requested(self, event: ChatList.RenameRequested) -> None:
        """Rename a chat."""
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

    def on_composer_sent(self, event: Composer.Sent) -> None:
        """A prompt or a slash command."""
        self.actions.enter(event.text, event.attachments)

    def on_composer_help_requested(self) -> None:
        """A question mark in an empty composer."""
        self.action_run("keys")

    def on_transcript_fork_requested(self, event: ForkRequested) -> None:
        """Fork a reply at a token."""
        self.actions.messages.fork_token(event.spot)

    def on_transcript_version_requested(self, event: VersionRequested) -> None:
        """A click on the version marks of a prompt or reply."""
        messages = self.actions.messages
        (messages.show_reply if event.of_reply else messages.show_version)(event.turn, event.step)

    def on_transcript_copy_requested(self, event: CopyRequested) -> None:
        """A click below a reply."""
        self.copy_to_clipboard((event.reply.answer or event.reply.text).strip())

    def on_transcript_code_requested(self, event: CodeRequested) -> None:
        """A click above a code block."""
        with self.actions.scope.reporting():
            self.actions.replies.copy_code(event.number, event.reply)

    def on_transcript_link_requested(self, event: LinkRequested) -> None:
        """A click on a link."""
        with self.actions.scope.reporting():
            self.actions.replies.open_address(event.address)

    def on_transcript_attachment_requested(self, event: AttachmentRequested) -> None:
        """A click on an attachment of a prompt."""
        self.actions.prompt.open_attachment(event.attachment)

    def on_text_selected(self, event: TextSelected) -> None:  # noqa: ARG002 the handler's signature
        """Text was selected with the mouse."""
        self.actions.replies.explain_selection()

    def copy_to_clipboard(self, text: str) -> None:
        """Copy a text with the terminal's clipboard sequence, and write it to a file."""
        super().copy_to_clipboard(text)
        self.actions.replies.keep_copy(text)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Entries of the command palette."""
        return self.actions.palette(screen)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hide the keys of actions that are not available."""
        if action == "run":
            return self.actions.available(str(parameters[0]))
        return super().check_action(action, parameters)

    def action_run(self, name: str) -> None:
        """Run an action of the table."""
        self.actions.press(name)

    def action_help_quit(self) -> None:
        """Explain ^c, which quits most other programs."""
        self.actions.views.explain_quit()
