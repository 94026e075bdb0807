"""Completions of the slash command or the path that is being typed, shown above the composer."""

from __future__ import annotations

from typing import Any, ClassVar

from rich.style import Style
from rich.text import Text
from textual.widget import Widget

from specchat.app.chat.tray import completions
from specchat.app.ui import slash

MOST = 6
"""Lines at most: the composer stays in sight on a small terminal."""
USAGE = 24


class CommandHint(Widget):
    """Hidden unless the text begins with one slash, or a path is begun."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"command-hint--usage", "command-hint--means"}
    ALLOW_SELECT = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._lines: list[tuple[str, str]] = []
        self.display = False

    def show(self, text: str, words: slash.Words, path: str | None = None) -> None:
        """Follow what is typed, and the path that is begun in it."""
        if path is not None:
            found = completions(path)
            lines = [(name, "") for name in found if found != [path]]
        else:
            lines = list(slash.hints(text, words)) if slash.is_command(text) else []
        if lines != self._lines:  # a layout for every key would be felt
            self._lines = lines
            self.display = bool(lines)
            self.refresh(layout=True)

    def render(self) -> Text:
        """One line for each command that it may be."""
        usage, means = self._style("usage"), self._style("means")
        lines = [
            Text.assemble((name.ljust(USAGE) if what else name, usage if what else means), (what, means))
            for name, what in self._lines
        ]
        if len(lines) > MOST:
            rest = ", ".join(name.split()[0] if what else name for name, what in self._lines[MOST - 1 :])
            lines = [*lines[: MOST - 1], Text(rest, means)]
        for line in lines:
            line.truncate(max(self.content_size.width, 1), overflow="ellipsis")
        return Text("\n", no_wrap=True, overflow="crop").join(lines)

    def _style(self, part: str) -> Style:
        return self.get_component_rich_style(f"command-hint--{part}", partial=True)
