"""Welcome page of an empty conversation: the name, the legend of the colours, and the loading progress."""

from __future__ import annotations

from typing import Any, ClassVar

from rich.style import Style
from rich.text import Text
from textual.widget import Widget

from specchat.app.sanitize import escape_controls
from specchat.app.ui.first_prompts import FIRST_PROMPTS
from specchat.app.ui.rendering.figures import FATES, meter
from specchat.app.ui.rendering.styles import TOKEN_CLASSES
from specchat.engine import Fate, Loading

BAR = 36
SHOWS = 14
"""Cells before an explanation or a prompt."""
NAME = (("spec", Fate.ACCEPTED), ("ulate", Fate.REJECTED), ("chat", Fate.CORRECTION))
MOTTO = "a small guess, a sharp check, the same answer sooner"


class Welcome(Widget):
    """The name is drawn as a round: drafted and accepted, rejected, corrected."""

    COMPONENT_CLASSES: ClassVar[set[str]] = TOKEN_CLASSES | {
        "welcome--quiet", "welcome--full", "welcome--empty", "welcome--error", "welcome--strong",
    }  # fmt: skip
    ALLOW_SELECT = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._state: Loading | str = Loading("import", "starting", None, 0.0)
        self._failed = False
        self.offering = True
        """Whether prompts are offered: not in a replay."""

    def show(self, state: Loading | str, *, failed: bool = False) -> None:
        """Show progress, or a sentence."""
        self._state, self._failed = state, failed
        self.refresh(layout=True)

    def render(self) -> Text:
        """All lines; the style sheet centres the block."""
        lines = [self._wordmark(), Text(MOTTO, self._style("welcome--quiet")), Text()]
        ending, offers, explained = self._progress(), self._offers(), self._explanations()
        room, width = self.size.height - len(lines) - len(ending), max(line.cell_len for line in explained)
        if room < len(offers):
            offers = []
        if room >= len(explained) + len(offers) and width <= self.size.width:
            lines += explained
        for line in offers:
            line.truncate(self.size.width, overflow="ellipsis")
        return Text("\n").join([*lines, *ending, *offers])

    def _wordmark(self) -> Text:
        name = Text()
        for part, fate in NAME:
            name.append(part, self._style(f"token--{fate.value}") + Style(bold=True))
        return name

    def _explanations(self) -> list[Text]:
        """The meaning of each colour."""
        return [*(self._explained(fate, meaning) for fate, meaning in FATES.items()), Text()]

    def _explained(self, fate: Fate, meaning: str) -> Text:
        style = self._style(f"token--{fate.value}")
        line = Text.assemble(("■ ", Style(color=style.color)), (fate.value, style))
        line.pad_right(SHOWS - line.cell_len)
        return line.append(meaning, self._style("welcome--quiet"))

    def _offers(self) -> list[Text]:
        """Example prompts to click on, and the keys for them."""
        if not self.offering or self._failed:
            return []
        quiet, strong = self._style("welcome--quiet"), self._style("welcome--full")
        lines = [Text()]
        for place, prompt in enumerate(FIRST_PROMPTS):
            click = Style(meta={"@click": f"screen.offer({place})"})
            lines.append(Text.assemble((prompt.shows.ljust(SHOWS), strong + click), (prompt.text, quiet + click)))
        tour = Style(meta={"@click": "app.run('tour')"})
        return [
            *lines,
            Text.assemble(("tab tries one · ", quiet), ("/tour", strong + tour), (" explains it all", quiet)),
        ]

    def _progress(self) -> list[Text]:
        if isinstance(self._state, str):
            return [Text(self._state, self._style("welcome--error" if self._failed else "welcome--strong"))]
        share = self._state.fraction
        full, empty = meter(share, BAR)
        text = escape_controls(self._state.text) + ("" if share is None else f"  {share * 100:.0f} %")
        bar = Text.assemble((full, self._style("welcome--full")), (empty, self._style("welcome--empty")))
        return [bar, Text(text, self._style("welcome--strong"))]

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(name, partial=True)
