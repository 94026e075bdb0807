"""How two drafters did on one reply, and how many of its tokens were had by whom, as a bar and in figures."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any, ClassVar

from rich.style import Style
from rich.text import Text
from textual.geometry import Size
from textual.widget import Widget

from specchat.app.chat.aligned_reply import AlignedReply, Had
from specchat.app.ui.rendering.figures import percent
from specchat.app.ui.rendering.had_styles import ALONE, HAD_CLASSES, HAD_STYLES, LETTERS, QUIET

BARS = {Had.BOTH: "█", Had.ONLY_A: "▓", Had.ONLY_B: "▒", Had.NEITHER: "░"}
WIDE = 46
"""Cells from which on each drafter has one line."""
MEANING = "A drafter has a token that comes out of its own draft along this reply: what specchat evaluate counts."


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

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002 the base class names them
        """As many lines as there are in this width."""
        return len(self._text(width).wrap(self.app.console, width))

    def render(self) -> Text:
        """The drafters, the bar, the classes."""
        return self._text(self.content_size.width)

    def _text(self, width: int) -> Text:
        wide = width >= WIDE
        drafters = [self._drafter(place, wide=wide) for place in range(2)]
        if self._aligned is None:
            return Text("\n").join([*drafters, Text(self._instead, self._style(QUIET))])
        classes = [self._class(had, column=not wide) for had in Had]
        if wide:
            rows = [classes] if sum(each.cell_len + 2 for each in classes) <= width + 2 else [classes[:2], classes[2:]]
            return Text("\n").join([*drafters, self._bar(width), *(Text("  ").join(row) for row in rows)])
        return Text("\n").join(
            [*drafters, Text(), self._bar(width), *classes, Text(), Text(MEANING, self._style(QUIET))]
        )

    def _drafter(self, place: int, *, wide: bool) -> Text:
        name = self._drafters[place]
        longest = max(map(len, self._drafters))
        line = Text.assemble((LETTERS[place], self._had(ALONE[place])), " ", name.ljust(longest) if wide else name)
        if self._aligned is not None:
            figures = self._aligned.alignment.figures[place]
            had = sum(self._aligned.counts[each] for each in (Had.BOTH, ALONE[place]))
            says = f"τ {figures.tau:.2f} · α {figures.alpha:.2f} · has {had} of {len(self._aligned.had)}"
            line.append(f"{'  ' if wide else chr(10) + '  '}{says}", self._style(QUIET))
        return line

    def _bar(self, width: int) -> Text:
        """The shares side by side, as many cells as there are."""
        assert self._aligned is not None
        counts = [self._aligned.counts[had] for had in Had]
        ends = [round(width * part / sum(counts)) for part in accumulate(counts, initial=0)]
        bar = Text(no_wrap=True)
        for had, (start, end) in zip(Had, pairwise(ends), strict=True):
            bar.append(BARS[had] * (end - start), Style(color=self._had(had).color))
        return bar

    def _class(self, had: Had, *, column: bool) -> Text:
        assert self._aligned is not None
        count, name = self._aligned.counts[had], Text(had.value, self._had(had))
        share = percent(count / len(self._aligned.had))
        figures = f"{'':{9 - len(had.value)}}{count:>5}{share:>7}" if column else f" {count} {share}"
        return Text.assemble((BARS[had], Style(color=self._had(had).color)), " ", name, figures)

    def _had(self, had: Had) -> Style:
        return self._style(HAD_STYLES[had])

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(name, partial=True)
