"""The styles of a timeline."""

from __future__ import annotations

from rich.style import Style
from textual.widget import Widget

from specchat.engine import Fate

PARTS = ("draft", "verify", "rest", "lane", "picked", "empty")
"""Component classes of a timeline beside those of tokens."""


def timeline_styles(timeline: Widget) -> dict[str, Style]:
    """Of the parts of a bar, of each fate's sign, of tokens in words, and (`base`) of what is empty.

    To work one out takes as long as to draw a line with all of them.
    """
    styles = {part: timeline.get_component_rich_style(f"timeline--{part}") for part in PARTS}
    for fate in Fate:
        styles[f"token--{fate.value}"] = token = timeline.get_component_rich_style(f"token--{fate.value}")
        # A sign says what the lines through and under it would; with them it could not be read.
        styles[f"sign--{fate.value}"] = token + Style(strike=False, underline=False)
    styles["thin"] = Style(color=styles["draft"].color, bgcolor=styles["verify"].color)
    styles["base"] = timeline.rich_style
    return styles
