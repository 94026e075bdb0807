"""Completions and arguments of the slash command that is being typed, shown above the composer."""

from __future__ import annotations

from typing import Any, ClassVar

from rich.style import Style
from rich.text import Text
from textual.widget import Widget

from specchat.app.ui import slash

MOST = 6
"""Lines at most: the composer stays in sight on a small terminal."""
USAGE = 24


class CommandHint(Widget):
    """Hidden unless the text begins with one slash."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"command-hint--usage", "command-hint--means"}
    ALLOW_SELECT = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._lines: list[tuple[str, str]] = []
        self.display = False

    def show(self, text: str, words: slash.Words) -> None:
        """Follow what is typed."""
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
            rest = ", ".join(name.split()[0] for name, _ in self._lines[MOST - 1 :])
            lines = [*lines[: MOST - 1], Text(rest, means)]
        for line in lines:
            line.truncate(max(self.content_size.width, 1), overflow="ellipsis")
        return Text("\n", no_wrap=True, overflow="crop").join(lines)

    def _style(self, part: str) -> Style:
        return self.get_component_rich_style(f"command-hint--{part}", partial=True)
