"""Completion of slash commands and paths with tab."""

from __future__ import annotations

from specchat.app.chat.tray import completions
from specchat.app.ui import slash


class Completer:
    """Completes as far as the text is unambiguous; further calls go through the alternatives."""

    def __init__(self) -> None:
        self._stem: str | None = None
        """The command line of the first call."""
        self._paths: list[str] = []
        """The alternatives of a path."""

    def command(self, text: str, words: slash.Words) -> str | None:
        """The completed command line; None without one. `words` are the values that commands accept."""
        found = slash.matches(self._stem, words) if self._stem is not None else []
        if text in found:
            return found[(found.index(text) + 1) % len(found)]
        further = slash.completed(text, words)
        if further != text:
            self._stem = None
            return further
        self._stem = text
        return next((line for line in slash.matches(text, words) if line != text), None)

    def path(self, typed: str) -> tuple[str, bool] | None:
        """The completed path, and whether it is the complete name of a file; None without one."""
        if typed in self._paths:
            return self._paths[(self._paths.index(typed) + 1) % len(self._paths)], False
        found = completions(typed)
        common = slash.common_start(found)
        if len(found) == 1 or len(common) > len(typed):
            return common, len(found) == 1 and not common.endswith("/")
        if not found:
            return None
        self._paths = found
        return found[0], False
