"""Shown while a conversation is empty: the name, the legend of the colours, and the progress of loading."""

from __future__ import annotations

from typing import Any, ClassVar

from rich.style import Style
from rich.text import Text
from textual.widget import Widget

from specchat.app.sanitize import escape_controls
from specchat.app.ui.widgets.figures import FATES, meter
from specchat.app.ui.widgets.transcript_styles import TOKEN_CLASSES
from specchat.engine import Fate, Loading

BAR = 36
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

    def show(self, state: Loading | str, *, failed: bool = False) -> None:
        """Show progress, or a sentence."""
        self._state, self._failed = state, failed
        self.refresh(layout=True)

    def render(self) -> Text:
        """The block is centred by its style; its lines begin below each other."""
        lines = [self._wordmark(), Text(MOTTO, self._style("welcome--quiet")), Text()]
        explained = [self._explained(fate, meaning) for fate, meaning in FATES.items()]
        width = max(line.cell_len for line in explained)
        if self.size.height >= len(lines) + len(explained) + 4 and width <= self.size.width:
            lines += [*explained, Text()]
        lines += self._progress()
        return Text("\n").join(lines)

    def _wordmark(self) -> Text:
        name = Text()
        for part, fate in NAME:
            name.append(part, self._style(f"token--{fate.value}") + Style(bold=True))
        return name

    def _explained(self, fate: Fate, meaning: str) -> Text:
        style = self._style(f"token--{fate.value}")
        line = Text.assemble(("■ ", Style(color=style.color)), (fate.value, style))
        line.pad_right(14 - line.cell_len)
        return line.append(meaning, self._style("welcome--quiet"))

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
