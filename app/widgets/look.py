"""The styles a transcript is drawn with, resolved once per theme."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rich.style import Style

from engine import Fate

TOKEN_CLASSES = {f"token--{fate.value}" for fate in Fate}
PART_CLASSES = {
    f"transcript--{part}" for part in ("prompt", "mark", "link", "queued", "figures", "error", "caret", "text")
}


@dataclass(frozen=True, slots=True)
class Look:
    """Each token's fate has a style, and a second one without lines for the space around words."""

    fates: dict[Fate, Style]
    spaces: dict[Fate, Style]
    base: Style
    prompt: Style
    mark: Style
    link: Style
    queued: Style
    figures: Style
    error: Style
    caret: Style
    text: Style


def look_of(base: Style, component: Callable[[str], Style]) -> Look:
    """The look from a widget's own style and its component classes."""
    fates = {fate: component(f"token--{fate.value}") for fate in Fate}
    plain = Style(underline=False, strike=False)
    parts = {part.removeprefix("transcript--"): component(part) for part in PART_CLASSES}
    return Look(fates, {fate: style + plain for fate, style in fates.items()}, base, **parts)
