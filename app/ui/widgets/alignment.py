"""Two drafters on one reply: matches per drafter, and the details of one token."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any, ClassVar

from rich.style import Style
from rich.text import Text
from textual.geometry import Size
from textual.widget import Widget

from specchat.app.chat.second_reading import AlignedReply, Had
from specchat.app.ui.rendering.figures import percent
from specchat.app.ui.rendering.styles import ALONE, HAD_CLASSES, HAD_STYLES, LETTERS, QUIET
from specchat.app.ui.rendering.token_lines import END, draft_text

_ORDINALS = "first", "second", "third"


class AlignmentCard(Widget):
    """The token, its class, and a line or two for each drafter."""

    COMPONENT_CLASSES: ClassVar[set[str]] = HAD_CLASSES
    ALLOW_SELECT = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._aligned: AlignedReply | None = None
        self._place = 0

    def show(self, aligned: AlignedReply | None, place: int) -> None:
        """Show a token by its place; nothing where nothing is known yet."""
        self._aligned, self._place = aligned, place
        self.refresh(layout=True)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002 the base class names them
        """As many lines as there are in this width."""
        return len(self._text(width).wrap(self.app.console, width))

    def render(self) -> Text:
        """The token, then A, then B."""
        return self._text(self.content_size.width)

    def _text(self, width: int) -> Text:
        aligned = self._aligned
        if aligned is None:
            return Text()
        had, text = aligned.had[self._place], draft_text(aligned.texts[self._place]) or END
        head = Text.assemble(
            (f"token {self._place + 1} of {len(aligned.had)}  ", self._style(QUIET)),
            (text, self._style(HAD_STYLES[had])),
            (f"  {had.value}", self._style(QUIET)),
        )
        wide = width >= WIDE
        return Text("\n").join([head, *(self._drafter(drafter, wide=wide) for drafter in range(2))])

    def _drafter(self, drafter: int, *, wide: bool) -> Text:
        assert self._aligned is not None
        names = [figures.drafter for figures in self._aligned.alignment.figures]
        gap = " " * (max(map(len, names)) - len(names[drafter]) + 2) if wide else "\n  "
        return Text.assemble(
            (LETTERS[drafter], self._style(HAD_STYLES[ALONE[drafter]])), f" {names[drafter]}{gap}", self._says(drafter)
        )

    def _says(self, drafter: int) -> Text:
        """What the drafter proposed for the token, and what became of it."""
        assert self._aligned is not None
        alignment = self._aligned.alignment
        place = alignment.places[drafter][self._place]
        quiet = self._style(QUIET)
        if not place.offered:
            return Text("its draft had ended" if place.depth else "drafted nothing", quiet)
        names = [draft_text(alignment.names[token]) for token in place.offered]
        if alignment.temperature:
            words = f"proposed {_listed(names)} · accepted here with probability {place.beta:.2f}"
        elif place.predicted:
            order = _ORDINALS[place.depth] if place.depth < len(_ORDINALS) else f"{place.depth + 1}th"
            others = f" · besides {_listed(names[:-1])}" if len(names) > 1 else ""
            words = f"has it, {order} of its draft{others}"
        else:
            words = f"proposed {_listed(names)}"
        return Text(words, quiet)

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(name, partial=True)


def _listed(names: list[str]) -> str:
    """Tokens in quotation marks, since they begin with spaces."""
    return ", ".join(f"‘{name}’" for name in names)


BARS = {Had.BOTH: "█", Had.ONLY_A: "▓", Had.ONLY_B: "▒", Had.NEITHER: "░"}
WIDE = 46
"""Cells from which on each drafter has one line."""
MEANING = "A drafter matches a token if its own draft along this reply contains it, as specchat evaluate counts."


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
        """Show figures, or a sentence if they are missing."""
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
