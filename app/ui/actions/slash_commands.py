"""Running the commands that are typed into the composer behind a slash."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from specchat.app.chat.export import FORMATS
from specchat.app.errors import AppError
from specchat.app.settings.controls import BY_COMMAND, CONTROLS, Control
from specchat.app.settings.settings import AUTO, REJECTED, THINKING
from specchat.app.ui import slash
from specchat.app.ui.actions.scope import ActionScope
from specchat.app.ui.actions.settings import SettingsActions
from specchat.app.ui.notices import say
from specchat.engine import WHEN_FULL

Handler = Callable[[str], bool]
"""Runs a command with its argument; whether it was understood. What is wrong with it has then been said."""


class SlashCommands:
    """Runs a command line.

    Args:
        scope: What it acts on.
        settings: Runs the commands of the controls, and knows the presets.
        handlers: What runs each of the other commands.
        send: Sends a line to the model; whether it could be sent. If not, that has been said.
    """

    def __init__(
        self,
        scope: ActionScope,
        settings: SettingsActions,
        handlers: Mapping[str, Handler],
        send: Callable[[str], bool],
    ) -> None:
        self._scope = scope
        self._send = send
        self._settings = settings
        self._handlers = {"theme": self._use_theme, **handlers}

    @property
    def words(self) -> slash.Words:
        """What can stand behind the commands that take a word."""
        return {
            "gamma": lambda: (AUTO, *map(str, range(17))),
            "drafter": lambda: (AUTO, *self._scope.offer.drafters),
            **{c.command: _words_of(c) for c in CONTROLS if c.words and c.name != "gamma"},
            "rejected": lambda: REJECTED,
            "context": lambda: WHEN_FULL,
            "preset": lambda: self._settings.presets,
            "theme": lambda: sorted(self._scope.app.available_themes),
            "copy": lambda: slash.COPIES,
            "export": lambda: FORMATS,
            "thinking": lambda: list(THINKING),
        }

    def run(self, line: str) -> bool:
        """Run a command line; whether it was understood. What is wrong with it is said."""
        word = slash.first_word(line)
        if word in self._scope.offer.template_words and word[1:] not in slash.BY_NAME:
            return self._send(line)
        try:
            command, argument = slash.parse(line)
        except AppError as error:
            say(self._scope.app, str(error), "error")
            return False
        if command.name in BY_COMMAND and argument:
            return self._settings.change(BY_COMMAND[command.name], argument)
        return self._handlers[command.name](argument)

    def _use_theme(self, name: str) -> bool:
        if name not in self._scope.app.available_themes:
            known = ", ".join(sorted(self._scope.app.available_themes))
            say(self._scope.app, f"theme {name!r} is not known: choose one of {known}", "error")
            return False
        self._scope.app.theme = name
        return True


def _words_of(control: Control) -> Callable[[], Sequence[str]]:
    return lambda: [word for _, word in control.words]
