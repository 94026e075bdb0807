"""What is on screen: the app's own screens, how replies are drawn, and the theme."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from specchat.app.chat.lessons import lessons
from specchat.app.chat.reply import Reply
from specchat.app.chat.turn import Turn
from specchat.app.errors import UsageError
from specchat.app.paths import TOUR
from specchat.app.ui.actions.scope import ActionScope, UnavailableError
from specchat.app.ui.actions.settings import SettingsActions
from specchat.app.ui.notices import STILL_STARTING
from specchat.app.ui.rendering.token_lines import REJECTED_SHOWN
from specchat.app.ui.screens.candidates import CandidatesScreen
from specchat.app.ui.screens.chat import ChatScreen
from specchat.app.ui.screens.controls import ControlsScreen
from specchat.app.ui.screens.dialogs import LETTERS, JumpScreen
from specchat.app.ui.screens.help import DefinitionsScreen, KeysScreen, chat_help
from specchat.app.ui.screens.side_by_side import SideScreen
from specchat.app.ui.screens.tour import TourScreen
from specchat.app.ui.widgets.transcript import Transcript
from specchat.engine import read_trace


class Views:
    """Opens screens that need no input, and changes how replies are drawn."""

    def __init__(self, scope: ActionScope, settings: SettingsActions, *, replaying: bool) -> None:
        self._scope = scope
        self._settings = settings
        self._replaying = replaying

    def controls(self) -> None:
        """The panel of controls."""
        if self._scope.requests.settings is None:
            raise UnavailableError(STILL_STARTING)
        self._scope.app.push_screen(ControlsScreen(self._settings))

    def help(self) -> None:
        """Keys, fates, commands."""
        self._scope.app.push_screen(chat_help(replaying=self._replaying))

    def keys(self) -> None:
        """The keys of the focused widget."""
        self._scope.app.push_screen(KeysScreen())

    def tour(self) -> None:
        """Speculative decoding explained on a recorded reply."""
        self._scope.app.push_screen(TourScreen(lessons(read_trace(TOUR))))

    def definitions(self) -> None:
        """The meaning of each figure."""
        self._scope.app.push_screen(DefinitionsScreen())

    def theory(self) -> None:
        """What the paper predicts for this reply, as plots."""
        from specchat.app.ui.screens.theory import TheoryScreen  # imports a plotting library, too slow for the start

        self._scope.app.push_screen(TheoryScreen(self._scope.screen.reply))

    def explain_quit(self) -> None:
        """Say which keys stop replies and quit."""
        stops = ""
        match self._scope.app.screen:
            case CandidatesScreen():
                stops = "^x stops all · "
            case ChatScreen() as chat if chat.stoppable:
                stops = "esc stops the reply · "
            case SideScreen() as side if side.check_action("stop", ()):
                stops = "esc stops the reply · "
        self._scope.say(f"{stops}^q quits")

    def use_theme(self, name: str) -> None:
        """`/theme NAME`."""
        app = self._scope.app
        if name not in app.available_themes:
            known = ", ".join(sorted(app.available_themes))
            raise UsageError(f"theme {name!r} is not known: choose one of {known}")
        app.theme = name

    def toggle_markdown(self) -> None:
        """Replies as Markdown, or token by token."""
        self._transcript.markdown = not self._transcript.markdown

    def toggle_thoughts(self) -> None:
        """Show or fold the thinking of replies."""
        self._transcript.thoughts = not self._transcript.thoughts

    def toggle_by_round(self) -> None:
        """One round per line, as in Figure 1 of Leviathan et al. 2023; or running text."""
        self._scope.screen.toggle_class("-by-round")
        self._transcript.markdown = False
        self._transcript.by_round = self._scope.screen.has_class("-by-round")

    def next_rejected(self) -> None:
        """Fold, show or hide rejected and discarded tokens, in turn."""
        self._scope.app.notify(REJECTED_SHOWN[self._transcript.next_rejected()])

    def jump(self) -> None:
        """Show a letter next to each visible message, and go to the message whose letter is pressed."""
        self._scope.screen.panes.select("chat")
        if places := self._transcript.letter(LETTERS):
            self._scope.app.push_screen(JumpScreen(), partial(self._jump, places))

    def _jump(self, places: Mapping[str, Turn | Reply], letter: str | None) -> None:
        self._transcript.letter("")
        if letter is not None and letter in places:
            self._transcript.go_to(places[letter])

    @property
    def _transcript(self) -> Transcript:
        return self._scope.screen.transcript
