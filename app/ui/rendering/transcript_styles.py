"""The styles a transcript is drawn with, resolved once per theme."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rich.style import Style

from specchat.app.chat.chosen import CHOSEN
from specchat.app.ui.rendering.token_lines import FOLDED, TITLE
from specchat.engine import Fate

TOKEN_CLASSES = {f"token--{fate.value}" for fate in Fate}
PENDING = "pending"
"""The style of drafted tokens that are shown before they are judged."""
OTHER_STYLES = (PENDING, FOLDED, CHOSEN, TITLE)
"""Styles of tokens that are no fates."""
_PARTS = (
    "prompt", "mark", "link", "queued", "figures", "error", "caret", "text", "number", "cursor", "round", "untold",
)  # fmt: skip
PART_CLASSES = {f"transcript--{part}" for part in _PARTS} | {f"token--{name}" for name in OTHER_STYLES}


@dataclass(frozen=True, slots=True)
class TranscriptStyles:
    """Each token's fate has a style, and a second one without lines for the space around words."""

    fates: dict[str, Style]
    spaces: dict[str, Style]
    base: Style
    prompt: Style
    mark: Style
    link: Style
    queued: Style
    figures: Style
    error: Style
    caret: Style
    text: Style
    number: Style
    cursor: Style
    """Over the style of the selected token."""
    round: Style
    """Over the styles of the tokens of its round."""
    untold: Style
    """Over the styles of everything that the model was not told."""


def styles_of(base: Style, component: Callable[[str], Style]) -> TranscriptStyles:
    """The styles from a widget's own style and its component classes."""
    fates = {name: component(f"token--{name}") for name in (*Fate, *OTHER_STYLES)}
    plain = Style(underline=False, strike=False)
    parts = {part: component(f"transcript--{part}") for part in _PARTS}
    parts["round"] = Style(bgcolor=parts["round"].bgcolor)
    parts["untold"] = Style(color=parts["untold"].color)
    return TranscriptStyles(fates, {fate: style + plain for fate, style in fates.items()}, base, **parts)
