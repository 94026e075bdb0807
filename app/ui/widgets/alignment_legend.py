"""How two drafters did on one reply, and how many of its tokens were had by whom, as a bar and in figures."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any, ClassVar

from rich.style import Style
from rich.text import Text
from textual.widget import Widget

from specchat.app.chat.aligned_reply import AlignedReply, Had
from specchat.app.ui.widgets.figures import percent
from specchat.app.ui.widgets.had_styles import HAD_CLASSES, HAD_STYLES, LETTER, LETTERS, QUIET

BARS = {Had.BOTH: "█", Had.ONLY_A: "▓", Had.ONLY_B: "▒", Had.NEITHER: "░"}
_NARROW = 60
"""Cells from which on each drafter has one line."""


class AlignmentLegend(Widget):
    """Lines below each other; in a wide place fewer and longer ones."""

    COMPONENT_CLASSES: ClassVar[set[str]] = HAD_CLASSES
    ALLOW_SELECT = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._drafters = "", ""
        self._aligned: AlignedReply | None = None
        self._instead = ""

    def show(self, drafters: tuple[str, str], aligned: AlignedReply | None, instead: str = "") -> None:
        """Show figures; a sentence instead where there are none."""
        self._drafters, self._aligned, self._instead = drafters, aligned, instead
        self.refresh(layout=True)

    def render(self) -> Text:
        """The drafters, the bar, the classes."""
        lines = [self._drafter(place) for place in range(2)]
        if self._aligned is None:
            return Text("\n").join([*lines, Text(self._instead, self._style(QUIET))])
        wide = self.size.width >= _NARROW
        classes = [self._class(had, column=not wide) for had in Had]
        below = [Text("   ").join(classes)] if wide else [Text(), *classes]
        return Text("\n").join([*lines, self._bar(self.size.width), *below])

    def _drafter(self, place: int) -> Text:
        line = Text.assemble((LETTERS[place], self._style(LETTER)), " ", self._drafters[place])
        if self._aligned is not None:
            figures = self._aligned.alignment.figures[place]
            had = sum(self._aligned.counts[each] for each in (Had.BOTH, (Had.ONLY_A, Had.ONLY_B)[place]))
            says = f"τ {figures.tau:.2f} · α {figures.alpha:.2f} · has {had} of {len(self._aligned.had)}"
            line.append(f"{'  ' if self.size.width >= _NARROW else chr(10) + '  '}{says}", self._style(QUIET))
        return line

    def _bar(self, width: int) -> Text:
        """The shares side by side, as many cells as there are."""
        assert self._aligned is not None
        counts = [self._aligned.counts[had] for had in Had]
        ends = [round(width * part / max(sum(counts), 1)) for part in accumulate(counts, initial=0)]
        bar = Text(no_wrap=True)
        for had, (start, end) in zip(Had, pairwise(ends), strict=True):
            colour = self._had(had).color
            bar.append(BARS[had] * (end - start), Style(color=colour))
        return bar

    def _class(self, had: Had, *, column: bool) -> Text:
        assert self._aligned is not None
        count = self._aligned.counts[had]
        share = percent(count / len(self._aligned.had))
        figures = f"{count:>6}{share:>7}" if column else f" {count} · {share}"
        name = Text(had.value, self._had(had))
        return Text.assemble(BARS[had], " ", name, " " * (8 - len(had.value)) if column else "", figures)

    def _had(self, had: Had) -> Style:
        return self._style(HAD_STYLES[had])

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(name, partial=True)
