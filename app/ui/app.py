"""The app: it draws its first frame before anything else, then loads, then answers.

What blocks runs in threads: preparing the session, and everything that touches the store (`app.chat.archive`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
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

from specchat.app.chat.archive import Archive
from specchat.app.chat.conversation import Conversation
from specchat.app.chat.lessons import lessons
from specchat.app.chat.request_manager import RequestManager
from specchat.app.chat.session import Session
from specchat.app.errors import AppError
from specchat.app.paths import TOUR
from specchat.app.settings.preferences import Preferences
from specchat.app.sources.player import Player
from specchat.app.sources.probe import Probe
from specchat.app.sources.stepper import Stepper
from specchat.app.ui import themes
from specchat.app.ui.actions.attachments import AttachmentActions
from specchat.app.ui.actions.candidates import CandidateActions
from specchat.app.ui.actions.chats import ChatActions
from specchat.app.ui.actions.clipboard import Clipboard
from specchat.app.ui.actions.editor import EditorActions
from specchat.app.ui.actions.engine_offer import EngineOffer
from specchat.app.ui.actions.engine_records import EngineRecords
from specchat.app.ui.actions.file_export import FileExport
from specchat.app.ui.actions.palette_commands import PaletteCommands
from specchat.app.ui.actions.search import SearchActions
from specchat.app.ui.actions.settings import SettingsActions
from specchat.app.ui.actions.side_by_side import MakeDuet, SideBySide
from specchat.app.ui.actions.slash_commands import SlashCommands
from specchat.app.ui.actions.texts import OFF, TextActions
from specchat.app.ui.actions.tree import TreeActions
from specchat.app.ui.load_meter import LoadMeter
from specchat.app.ui.notices import STILL_STARTING, say
from specchat.app.ui.pace import Pace
from specchat.app.ui.pump import Pump
from specchat.app.ui.screens.candidates import CandidatesScreen
from specchat.app.ui.screens.chat import ChatScreen
from specchat.app.ui.screens.controls import ControlsScreen
from specchat.app.ui.screens.definitions import DefinitionsScreen
from specchat.app.ui.screens.help import HelpScreen, chat_help, replay_help
from specchat.app.ui.screens.messages import MessageAction
from specchat.app.ui.screens.side_by_side import SideScreen
from specchat.app.ui.screens.tour import TourScreen
from specchat.app.ui.theme_choice import ThemeChoice
from specchat.app.ui.widgets.chat_list import ChatList
from specchat.app.ui.widgets.notice_line import NoticeLine
from specchat.app.ui.widgets.transcript import Transcript
from specchat.engine import EngineError, read_trace

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
        for name in ("chat", "dialogs", "views", "controls", "candidates", "messages", "side", "tour")
    ]
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+q", "quit", "quit", key_display="^q", priority=True),
    ]

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
            begin_side_by_side: Whether that mode is opened at the start.
        """
        super().__init__()
        self._disable_notifications = True  # as toasts: `on_notify` shows them
        self._prepare = prepare
        self._player = player
        self._probe = probe
        self._begin_side_by_side = begin_side_by_side
        self.stepper: Stepper | None = None
        """Holds rounds back while they are stepped through; there once the session is."""
        self.requests = RequestManager()
        self.chat_screen = ChatScreen(self.requests, lambda: self.pump.run(), player)
        self._offer = EngineOffer()
        self.chats = ChatActions(self, self.chat_screen, self.requests, now)
        self.chat_clipboard = Clipboard(self, self.chat_screen, self._offer)
        self._export = FileExport(self, self.chat_screen, self._offer, pictures)
        self.settings_actions = SettingsActions(self, self.chat_screen, self.requests, self._offer)
        self._candidates = CandidateActions(self, self.chat_screen, self.requests, self.settings_actions, self._offer)
        self._tree = TreeActions(self, self.chat_screen, self.requests, self.chats.open)
        self._search = SearchActions(self, self.chat_screen, self.chats)
        self._texts = TextActions(self, self.chat_screen, self.requests, self.settings_actions)
        self._attachments = AttachmentActions(self, self.chat_screen, self.settings_actions)
        self._editor = EditorActions(self, self.chat_screen)
        self._side = SideBySide(self, self.requests, make_duet, self._return)
        self._commands = SlashCommands(
            self,
            self.settings_actions,
            self._offer,
            {
                "preset": self.settings_actions.use_preset,
                "save": self.settings_actions.save_preset,
                "candidates": self._candidates.command,
                "copy": self.chat_clipboard.copy,
                "export": self._export.chat,
                "controls": _understood(self.action_controls),
                **{
                    action: partial(self._tree.command, action)
                    for action in MessageAction
                    if action is not MessageAction.GO
                },
                "messages": _understood(self.action_messages),
                "system": self._texts.system,
                "system-save": self._texts.save_system,
                "system-default": _understood(self._texts.make_default),
                "template": self._texts.template,
                "template-save": self._texts.save_template,
                "attach": self._attachments.attach,
                "attachments": _understood(self.action_attachments),
                "context": self._attachments.context,
                "editor": _understood(self.action_editor),
                "search": _understood(self.action_search),
                "pin": _understood(self._pin),
                "new": _understood(self.chat_screen.action_new_chat),
                "theory": _understood(self.action_theory),
                "help": _understood(self.action_help),
                "tour": _understood(self.action_tour),
            },
        )
        self._palette = PaletteCommands(
            self, self._own_actions(), self.chats, self.settings_actions, self._export, self._tree.of_last, self._texts
        )
        set_pace = self._set_pace if player is None else None
        self._records = EngineRecords(
            self, self.chat_screen, self.requests, self.settings_actions, self._offer, set_pace, probe
        )
        self.pump = Pump(self, self.chats, self._records.handle, self._draw)
        words = {
            "system": lambda: [OFF, *(self._texts.systems.names() if self._texts.systems else ())],
            "template": lambda: self._texts.templates.names() if self._texts.templates else [],
        }
        self.chat_screen.complete_with({**self._commands.words, **words})
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
        session = event.session
        if isinstance(session, str):
            self._records.fail(session)
            return
        if session.store is not None:
            archive = Archive(session.store, self._store_failed)
            self.chats.archive = self._side.archive = self._tree.archive = archive
            self._search.archive = self._texts.archive = archive
        if session.settings_file is not None:
            self._texts.keep_in(session.settings_file.parent)
            self.settings_actions.preferences = Preferences(session.settings_file, self._store_failed)
        if session.settings is not None:
            settings = session.settings
            self._theme_choice.change(settings.theme)
            self._offer.target = Path(settings.target).name
            self.settings_actions.show(settings)
            self.chat_screen.show_rejected(settings.rejected)
        if session.notices:
            say(self, " · ".join(session.notices), "warning")
        self._theme_choice.keep(self.settings_actions.preferences)
        self.stepper = Stepper(session.source)
        self.chat_screen.connect(self.stepper)
        self.requests.connect(replace(session, source=self.stepper), self.chats.archive)
        self.chats.list()
        self.pump.start()
        self.set_interval(WRITE_S, self.chats.write)
        self.chats.restore_unsent()
        self._search.begin()
        if self._probe is not None:
            LoadMeter(self, self._probe, self.chat_screen.status.show_load).start()
        if self._begin_side_by_side:
            self._side.open()

    async def on_unmount(self) -> None:
        """However the app ends, what was said is stored, and what was being typed."""
        await self._side.close()
        self.chats.write()
        await asyncio.to_thread(self.requests.close)
        if self.settings_actions.preferences is not None:
            await asyncio.to_thread(self.settings_actions.preferences.close)

    def on_notify(self, event: Notify) -> None:
        """Show a notice on the topmost screen that has a place for it."""
        lines = [line for screen in self.screen_stack for line in screen.query(NoticeLine)]
        if lines:
            lines[-1].show(event.notification)

    # With every frame

    def _draw(self) -> None:
        """Show what has come.

        Only what can be seen: Textual draws all of a screen again for each change of one that is covered by it. While
        the app closes there is none left.
        """
        if self.stepper is not None:
            self.requests.show_steps(self.stepper.shown)
        shown = next((screen for screen in reversed(self.screen_stack) if not isinstance(screen, ModalScreen)), None)
        if isinstance(shown, ChatScreen | CandidatesScreen):
            shown.update()
        if self.chats.list_is_old:
            self.chats.list()

    def _own_actions(self) -> dict[str, Callable[[], None]]:
        return {
            "controls": self.action_controls,
            "candidates": self.action_candidates,
            "messages": self.action_messages,
            "search": self.action_search,
            "attachments": self.action_attachments,
            "context": self.action_context,
            "editor": self.action_editor,
            "copy": self.action_copy,
            "side_by_side": self.action_side_by_side,
            "definitions": self.action_definitions,
            "theory": self.action_theory,
            "save_picture": self.action_save_picture,
            "help": self.action_help,
            "tour": self.action_tour,
        }

    def _set_pace(self, pace: Pace) -> None:
        self.pump.set_pace(pace)
        self.chat_screen.set_pace(pace)

    def _store_failed(self, sentence: str) -> None:
        """The chat goes on; the user knows that it is not kept. Called in the writing thread."""
        say(self, sentence, "error")

    # What the user does

    def on_chat_list_chosen(self, event: ChatList.Chosen) -> None:
        """Open a chat."""
        self.chats.open(event.chat)

    def on_chat_list_rename_wanted(self, event: ChatList.RenameWanted) -> None:
        """Ask for another title."""
        self.chats.rename(event.chat)

    def on_chat_list_delete_wanted(self, event: ChatList.DeleteWanted) -> None:
        """Delete a chat."""
        self.chats.delete(event.chat)

    def on_chat_list_pin_wanted(self, event: ChatList.PinWanted) -> None:
        """Pin or unpin a chat."""
        self.chats.pin(event.chat)

    def on_chat_list_undo_wanted(self) -> None:
        """Restore the chat that was deleted last."""
        self.chats.undo_delete()

    def on_chat_screen_chat_begun(self) -> None:
        """The empty chat is not in the list yet: nothing is marked as open."""
        self.chats.list()

    def on_chat_screen_command_entered(self, event: ChatScreen.CommandEntered) -> None:
        """Run a command; a line that is wrong comes back to be corrected."""
        if not self._commands.run(event.line):
            self.chat_screen.put(event.line)

    def on_composer_help_wanted(self) -> None:
        """A question mark in an empty composer."""
        self.action_help()

    def on_transcript_fork_wanted(self, event: Transcript.ForkWanted) -> None:
        """Take another way at a token."""
        if self._player is None:
            self._tree.fork_token(event.spot)

    def on_transcript_version_wanted(self, event: Transcript.VersionWanted) -> None:
        """A click on the marks of the versions."""
        (self._tree.show_reply if event.of_reply else self._tree.show_version)(event.turn, event.step)

    def on_transcript_copy_wanted(self, event: Transcript.CopyWanted) -> None:
        """A click below a reply."""
        self.copy_to_clipboard(event.reply.text.strip())

    def on_transcript_attachment_wanted(self, event: Transcript.AttachmentWanted) -> None:
        """A click on what was sent along with a prompt."""
        self._attachments.open(event.attachment)

    def on_text_selected(self, event: TextSelected) -> None:  # noqa: ARG002 the handler's signature
        """Text was selected with the mouse."""
        self.chat_clipboard.tell_of_selection()

    def copy_to_clipboard(self, text: str) -> None:
        """Hand a text to the terminal, and keep it in a file."""
        super().copy_to_clipboard(text)
        self.chat_clipboard.keep(text)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """What the palette offers."""
        if isinstance(screen, ChatScreen):
            replaying, side_by_side = self._player is not None, self._side.offered
            yield from self._palette.of_chat(screen, replaying=replaying, side_by_side=side_by_side)
        elif isinstance(screen, SideScreen):
            yield from self._palette.of_side_by_side(screen)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hide what a replay cannot do."""
        if action == "side_by_side":
            return self._side.offered
        if action in ("controls", "messages", "search", "attachments", "context", "editor"):
            return self._player is None
        return super().check_action(action, parameters)

    def action_help_quit(self) -> None:
        """What ^c does in most programs, and does not do here while no text is selected."""
        screen = self.screen
        busy = isinstance(screen, ChatScreen | SideScreen) and screen.check_action("stop", ())
        stops = "esc stops the reply · " if busy else "^x stops all · " if isinstance(screen, CandidatesScreen) else ""
        say(self, f"{stops}^q quits")

    def action_side_by_side(self) -> None:
        """The same prompt with and without drafts, each on a clock of its own."""
        self._side.open()

    def action_controls(self) -> None:
        """Open the panel of controls."""
        if self.requests.settings is None:
            say(self, STILL_STARTING, "warning")
        elif self.screen is self.chat_screen:
            self.push_screen(ControlsScreen(self.settings_actions))

    def action_candidates(self) -> None:
        """The latest prompt's several replies."""
        self._candidates.show()

    def action_messages(self) -> None:
        """The messages of the chat: edit, ask again, continue, fork, other versions."""
        if self.screen is self.chat_screen:
            self._tree.messages()

    def action_search(self) -> None:
        """Search all chats."""
        if self.screen is self.chat_screen:
            self._search.ask()

    def action_attachments(self) -> None:
        """What is sent along with prompts."""
        if self.screen is self.chat_screen:
            self._attachments.show()

    def action_context(self) -> None:
        """How full the context is."""
        if self.screen is self.chat_screen:
            self._attachments.context()

    def action_editor(self) -> None:
        """Write the prompt in an editor."""
        if self.screen is self.chat_screen:
            self._editor.edit()

    def _pin(self) -> None:
        """Pin or unpin the chat that is open."""
        if (chat := self.chat_screen.conversation.chat) is not None:
            self.chats.pin(chat)
        else:
            say(self, "this chat has no messages yet", "warning")

    def action_copy(self) -> None:
        """Ask what to copy."""
        self.chat_clipboard.ask()

    def action_save_picture(self) -> None:
        """Write the screen to a new file."""
        self._export.screen()

    def action_help(self) -> None:
        """Keys, fates, commands."""
        self.push_screen(HelpScreen(chat_help() if self._player is None else replay_help()))

    def action_tour(self) -> None:
        """What the colours mean, told on a recorded reply."""
        self.push_screen(TourScreen(lessons(read_trace(TOUR))))

    def action_definitions(self) -> None:
        """What each figure means."""
        self.push_screen(DefinitionsScreen())

    def action_theory(self) -> None:
        """What the paper predicts, drawn, with this reply's points."""
        from specchat.app.ui.screens.theory import TheoryScreen  # a plotting library that a start need not wait for

        self.push_screen(TheoryScreen(self.chat_screen.reply))

    def _return(self, conversation: Conversation | None) -> None:
        """From the side-by-side mode, with the lane to continue if there is one."""
        if conversation is not None:
            self.chat_screen.show(conversation)
        self.chats.list()


def _understood(action: Callable[[], None]) -> Callable[[str], bool]:
    """An action as the handler of a command without an argument."""

    def handle(_argument: str) -> bool:
        action()
        return True

    return handle
