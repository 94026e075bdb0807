"""Legend of the colours: every fate's name in the style of its tokens."""

from __future__ import annotations

from typing import Any, ClassVar

from rich.style import Style
from rich.text import Text
from textual.widget import Widget

from specchat.app.ui.rendering.figures import FATES
from specchat.app.ui.rendering.transcript_styles import TOKEN_CLASSES
from specchat.engine import Fate

SIGN = "■ "


class Legend(Widget):
    """One line. Where it does not fit, the signs before the names are left out, then it is cut."""

    COMPONENT_CLASSES: ClassVar[set[str]] = TOKEN_CLASSES
    ALLOW_SELECT = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.observed = False
        """Whether fates may be unknown."""
        self.tooltip = "what became of each token · f1 explains"

    def get_content_width(self, container: Any, viewport: Any) -> int:  # noqa: ARG002 the base class names them
        """The width with signs."""
        return len(self._line(SIGN, "  ").plain)

    def render(self) -> Text:
        """The longest form that fits."""
        for sign, gap in ((SIGN, "  "), (SIGN, " "), ("", " ")):
            line = self._line(sign, gap)
            if line.cell_len <= self.size.width:
                break
        return line

    def _line(self, sign: str, gap: str) -> Text:
        line = Text(no_wrap=True, overflow="crop")
        for fate in (*FATES, *([Fate.UNKNOWN] if self.observed else [])):
            style = self.get_component_rich_style(f"token--{fate.value}", partial=True)
            if fate is not Fate.ACCEPTED:
                line.append(gap)
            line.append(sign, Style(color=style.color))
            line.append(fate.value, style)
        return line
