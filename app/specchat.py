"""The app: it draws its first frame before anything else, then loads, then answers.

The engine is drained here and nowhere else, once for each frame (`app.pace`). What blocks runs in threads: preparing
the session, and everything that touches the store (`app.archive`).
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
from textual.message import Message
from textual.screen import ModalScreen, Screen
from textual.theme import Theme

from app import themes
from app.archive import Archive
from app.chats import ChatsApp
from app.conversation import Conversation
from app.errors import AppError
from app.offers import offers, offers_side_by_side
from app.pace import FRAME_S, follow_every, frame_s
from app.player import Player
from app.preferences import Preferences
from app.probe import Probe
from app.screens.candidates import CandidatesScreen
from app.screens.chat import ChatScreen
from app.screens.definitions import DefinitionsScreen
from app.screens.help import HelpScreen
from app.screens.side_by_side import SideScreen
from app.session import Session
from app.settings import Settings
from app.side import MakeDuet, SideBySide
from app.steering import SteeringApp
from app.stepper import Stepper
from engine import Died, EngineError, Loading, Notice, Ready, Request

STYLES = Path(__file__).parent / "styles"
WRITE_S = 0.25
"""A kill loses what came after the last write: this much at most."""
PROBE_S = 1.0


class SpecChat(SteeringApp):
    """Chat with a model and watch it being sped up; or, with a player, watch a recorded trace."""

    TITLE = "specchat"
    CSS_PATH = [  # noqa: RUF012
        STYLES / f"{name}.tcss" for name in ("chat", "dialogs", "views", "controls", "candidates", "side")
    ]
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
            pictures: The folder that pictures of the screen go to; the current one by default.
            now: The time of day, for the ages of chats.
            probe: Measures what the interface and the GPU do; without one the panel does not say.
            make_duet: Makes the lanes of the side-by-side mode; without it there is none.
            begin_side_by_side: Whether that mode is opened at the start.
        """
        super().__init__(player, now)
        self._prepare = prepare
        self._player = player
        self.pictures = pictures
        self._probe = probe
        self.stepper: Stepper | None = None
        """Holds rounds back while they are stepped through; there once the session is."""
        self.follow_every = follow_every(FRAME_S)
        """With every which frame the end of a reply is brought into sight."""
        self.side = SideBySide(self, make_duet)
        self._begin_side_by_side = begin_side_by_side
        self.register_theme(themes.DARK)
        self.register_theme(themes.LIGHT)
        self._begin_with(theme)

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
            self.post_message(self.Prepared(self._prepare()))
        except (EngineError, AppError) as error:
            self.post_message(self.Unprepared(str(error)))
        except Exception as error:
            self.post_message(self.Unprepared(f"specchat could not start ({type(error).__name__}: {error})"))

    def on_spec_chat_prepared(self, event: Prepared) -> None:
        """Connect everything, and begin to drain."""
        session = event.session
        if session.store is not None:
            self.archive = Archive(session.store, self._store_failed)
        if session.settings_file is not None:
            self.preferences = Preferences(session.settings_file, self._store_failed)
        if session.settings is not None:
            settings = session.settings
            if settings.theme in self.available_themes and settings.theme != self.theme:
                self.theme = settings.theme
            self.target = Path(settings.target).name
            self.show_settings(settings)
            self.chat_screen.show_rejected(settings.show_rejected)
        for sentence in session.notices:
            self.say(sentence, severity="warning")
        self._theme_kept = self.theme
        self.theme_changed_signal.subscribe(self, self._keep_theme)
        self.stepper = Stepper(session.source)
        self.exchange.connect(replace(session, source=self.stepper), self.archive)
        self.side.connect(self.archive)
        self.list_chats()
        self._frames = self.set_interval(FRAME_S, self.pump)
        self.set_interval(WRITE_S, self.write)
        self.bring_draft()
        if self._probe is not None:
            self.set_interval(PROBE_S, self._measure)
        if self._begin_side_by_side:
            self.side.open()

    def _keep_theme(self, theme: Theme) -> None:
        """A theme that was chosen in the app is there again at the next start."""
        if theme.name != self._theme_kept and self.preferences is not None:
            self._theme_kept = theme.name
            self.preferences.remember(Settings(theme=theme.name), ["theme"])

    def on_spec_chat_unprepared(self, event: Unprepared) -> None:
        """Say why; prompts get the same sentence."""
        self._fail(event.sentence)

    def pump(self) -> None:
        """Take in what the source has said, and show it."""
        for record in self.exchange.drain():
            match record:
                case Loading():
                    self.chat_screen.show_loading(record)
                case Ready():
                    self._become_ready(record)
                case Notice():
                    self.say(record.text)
                case Died():
                    self._fail(record.message)
                case Request():
                    self.show_drafting(record.drafter, record.gamma, lossless=record.sampling.lossless)
                    self.exchange.follow(self.chat_screen.conversation, record)
        if self.stepper is not None:
            self.exchange.show_steps(self.stepper.shown)
        # Only what can be seen: Textual draws all of a screen again for each change of one that is covered by it.
        # While the app closes there is none left.
        shown = next((screen for screen in reversed(self.screen_stack) if not isinstance(screen, ModalScreen)), None)
        if isinstance(shown, ChatScreen | CandidatesScreen):
            shown.update()
        if self.list_is_old:
            self.list_chats()

    def on_chats_app_store_failed(self, event: ChatsApp.StoreFailed) -> None:
        """The chat goes on; the user knows that it is not kept."""
        self.say(event.sentence, severity="error")

    async def on_unmount(self) -> None:
        """However the app ends, what was said is stored, and what was being typed."""
        await self.side.close()
        self.write()
        await asyncio.to_thread(self.exchange.close)
        if self.preferences is not None:
            await asyncio.to_thread(self.preferences.close)

    # Commands

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """What the palette offers."""
        if screen is self.chat_screen:
            yield from offers(self, self.chat_screen, replaying=self._player is not None)
        elif isinstance(screen, SideScreen):
            yield from offers_side_by_side(self, screen)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """A replay has nobody to ask."""
        if action == "side_by_side":
            return self.side.offered
        return super().check_action(action, parameters)

    def action_side_by_side(self) -> None:
        """The same prompt with and without drafts, each on a clock of its own."""
        self.side.open()

    def come_back(self, conversation: Conversation | None) -> None:
        """From the side-by-side mode, with the lane to go on from if there is one."""
        if conversation is not None:
            self.chat_screen.show(conversation)
        self.list_chats()

    def action_help(self) -> None:
        """Keys, fates, figures."""
        self.push_screen(HelpScreen(replaying=self._player is not None))

    def action_definitions(self) -> None:
        """What each figure means."""
        self.push_screen(DefinitionsScreen())

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

    @work(exclusive=True, group="probe", exit_on_error=False)
    async def _measure(self) -> None:
        if self._probe is not None:
            interface = self._probe.interface()
            gpu = await asyncio.to_thread(self._probe.gpu)
            self.chat_screen.show_load(gpu, interface)

    def _store_failed(self, sentence: str) -> None:
        self.post_message(self.StoreFailed(sentence))

    def _become_ready(self, ready: Ready) -> None:
        self.target, self.drafters, self.slots = ready.target, ready.drafters, ready.slots
        if self._player is None:
            self._frames.stop()
            self._frames = self.set_interval(self.pace(ready.device), self.pump)
        self.show_drafting()
        self.chat_screen.show_ready(ready)
        if self._probe is not None and ready.device == "cuda":
            self._probe.find_gpu(ready.device_name)
        self.exchange.ready()

    def pace(self, device: str) -> float:
        """Draw at the pace that suits an engine on this device; seconds between two frames."""
        seconds = frame_s(device)
        self.follow_every = follow_every(seconds)
        return seconds

    def _fail(self, sentence: str) -> None:
        self.chat_screen.show_loading(sentence, failed=True)
        if self.chat_screen.conversation.turns:  # else the whole screen says it
            self.say(sentence, severity="error")
        self.exchange.fail(sentence)
