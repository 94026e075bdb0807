"""Markdown of a growing text: blocks that can no longer change are rendered once."""

from __future__ import annotations

import math
from collections.abc import Callable
from time import thread_time as processor_time
from typing import TYPE_CHECKING, Any

from textual.app import App
from textual.strip import Strip

from specchat.app.chat.markdown import parts
from specchat.app.chat.reply import Reply
from specchat.app.sanitize import escape_controls
from specchat.app.ui.pump import Pace
from specchat.app.ui.rendering.styles import TranscriptStyles

if TYPE_CHECKING:
    from specchat.app.ui.rendering.markdown import MarkdownRenderer

OPEN = 2
"""Number of last blocks that may still change: text after a list may become another item."""
SHARE = 0.03
"""Maximum share of the interface's time for rendering."""

BLANK = Strip([])


class LiveMarkdown:
    """The lines of a growing text.

    Args:
        renderer: Renders its blocks.
        pace: How often the screen is drawn; the text is rendered no more often than the view follows its end.
    """

    def __init__(self, renderer: MarkdownRenderer, pace: Pace) -> None:
        self.strips: list[Strip] = []
        self.behind = False
        """Whether some text is not rendered yet."""
        self._renderer, self._pace = renderer, pace
        self._wait = 0
        """Frames until it is rendered again."""
        self._final_text = 0
        """Characters of the blocks that can no longer change."""
        self._final: list[Strip] = []
        self._final_codes = 0
        """Code blocks among them."""
        self._open: dict[tuple[str, int], list[Strip]] = {}
        """Lines of the last blocks, by source and number of the first code block."""

    def update(self, text: Callable[[], str], *, complete: bool) -> int | None:
        """Render the grown text; returns the first changed line, or None.

        A complete text is parsed as a whole, so that its final form does not depend on how it grew.
        """
        self._wait -= 1
        self.behind = not complete and self._wait > 0
        if self.behind:
            return None
        started, before = processor_time(), self.strips
        if complete:
            self._final_text, self._final, self._final_codes = 0, [], 0
        self._render(escape_controls(text().lstrip("\n"))[self._final_text :], keep=0 if complete else OPEN)
        spent = math.ceil((processor_time() - started) / (SHARE * self._pace.frame_s))
        self._wait = max(self._pace.follow_every, spent)
        return _first_difference(before, self.strips)

    def _render(self, tail: str, keep: int) -> None:
        """Render the blocks that may change; all but the last `keep` of them are final then."""
        blocks = parts(tail)
        known, self._open, codes = self._open, {}, self._final_codes
        open_strips: list[Strip] = []
        for number, part in enumerate(blocks):
            key = part.source, codes
            lines = known.get(key) or self._renderer.strips(part, codes + 1)
            codes += part.codes
            if number < len(blocks) - keep:
                self._final += _below(self._final, lines)
                self._final_text += len(part.source)
                self._final_codes = codes
            else:
                self._open[key] = lines
                open_strips += _below(self._final or open_strips, lines)
        self.strips = [*self._final, *open_strips]


def markdown_of(reply: Reply, app: App[Any], pace: Pace, width: int, styles: TranscriptStyles) -> LiveMarkdown:
    """The Markdown of a reply; a click above a code block copies it."""
    from specchat.app.ui.rendering.markdown import MarkdownRenderer  # slow to import, and not needed at the start

    def copy(number: int) -> str:
        return f"request('code', {id(reply)}, ({number},))"

    return LiveMarkdown(MarkdownRenderer(app.console, width, styles, dark=app.current_theme.dark, copy=copy), pace)


def _below(above: list[Strip], lines: list[Strip]) -> list[Strip]:
    """The lines of a block, with an empty one before them unless it is the first."""
    return [BLANK, *lines] if above and lines else lines


def _first_difference(before: list[Strip], now: list[Strip]) -> int | None:
    same = next((n for n, (one, other) in enumerate(zip(before, now, strict=False)) if one is not other), None)
    if same is not None:
        return same
    return None if len(before) == len(now) else min(len(before), len(now))
