"""The app's own screens and what else a key, a command or the palette opens, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from specchat.app.chat.lessons import lessons
from specchat.app.paths import TOUR
from specchat.app.ui.actions.scope import ActionScope
from specchat.app.ui.actions.settings import SettingsActions
from specchat.app.ui.notices import STILL_STARTING, say
from specchat.app.ui.screens.controls import ControlsScreen
from specchat.app.ui.screens.definitions import DefinitionsScreen
from specchat.app.ui.screens.help import HelpScreen, chat_help, replay_help
from specchat.app.ui.screens.keys import KeysScreen, active_keys
from specchat.app.ui.screens.tour import TourScreen
from specchat.engine import read_trace

CHAT_VIEWS = ("controls", "messages", "models", "search", "attachments", "context", "editor")
"""Views that are opened from the chat, and that a replay has no use for."""


class Views:
    """What the app can open.

    Args:
        scope: What it acts on.
        settings: Changes the settings.
        replaying: Whether the app shows a replay.
        others: What else can be opened, by name.
    """

    def __init__(
        self,
        scope: ActionScope,
        settings: SettingsActions,
        others: Mapping[str, Callable[[], object]],
        *,
        replaying: bool,
    ) -> None:
        self._scope = scope
        self._settings = settings
        self._replaying = replaying
        self._open: Mapping[str, Callable[[], object]] = {
            "controls": self._controls,
            "definitions": self._definitions,
            "theory": self._theory,
            "help": self._help,
            "keys": self._keys,
            "tour": self._tour,
            **others,
        }

    def open(self, name: str) -> None:
        """Open a view."""
        if name not in CHAT_VIEWS or self._scope.app.screen is self._scope.screen:
            self._open[name]()

    def offered(self, name: str) -> bool:
        """Whether the view is of use here."""
        return not (self._replaying and name in CHAT_VIEWS)

    def command(self, name: str) -> Callable[[str], bool]:
        """Opening a view, as the handler of a command without an argument."""
        return understood(partial(self.open, name))

    def _controls(self) -> None:
        """The panel of controls."""
        if self._scope.requests.settings is None:
            say(self._scope.app, STILL_STARTING, "warning")
        else:
            self._scope.app.push_screen(ControlsScreen(self._settings))

    def _help(self) -> None:
        """Keys, fates, commands."""
        self._scope.app.push_screen(HelpScreen(replay_help() if self._replaying else chat_help()))

    def _keys(self) -> None:
        """The keys of what has the focus."""
        self._scope.app.push_screen(KeysScreen(active_keys(self._scope.app)))

    def _tour(self) -> None:
        """What the colours mean, told on a recorded reply."""
        self._scope.app.push_screen(TourScreen(lessons(read_trace(TOUR))))

    def _definitions(self) -> None:
        """What each figure means."""
        self._scope.app.push_screen(DefinitionsScreen())

    def _theory(self) -> None:
        """What the paper predicts, drawn, with this reply's points."""
        from specchat.app.ui.screens.theory import TheoryScreen  # a plotting library that a start need not wait for

        self._scope.app.push_screen(TheoryScreen(self._scope.screen.reply))


def understood(action: Callable[[], None]) -> Callable[[str], bool]:
    """An action as the handler of a command without an argument."""

    def handle(_argument: str) -> bool:
        action()
        return True

    return handle
