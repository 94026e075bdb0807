"""The two themes of specchat, and colours of the fates for every theme.

The fates' colours are from the palette of Okabe and Ito, which people with any kind of colour blindness can tell
apart, made lighter on dark ground and darker on light ground. No fate relies on its colour: each has an attribute too.
"""

from __future__ import annotations

from textual.color import Color
from textual.theme import Theme

FATES_ON_DARK = {
    "fate-accepted": "#4cc9a4",
    "fate-rejected": "#ff8a50",
    "fate-discarded": "#a0a8b4",
    "fate-correction": "#f2b441",
    "fate-bonus": "#6cbdf2",
    "fate-plain": "#d5dae2",
    "fate-unknown": "#d5dae2",
}
FATES_ON_LIGHT = {
    "fate-accepted": "#00735a",
    "fate-rejected": "#a33a00",
    "fate-discarded": "#4f5560",
    "fate-correction": "#8a5a00",
    "fate-bonus": "#00619c",
    "fate-plain": "#2b303b",
    "fate-unknown": "#2b303b",
}
FATES_IN_16_COLOURS = {
    "fate-accepted": "ansi_green",
    "fate-rejected": "ansi_red",
    "fate-discarded": "ansi_bright_black",
    "fate-correction": "ansi_yellow",
    "fate-bonus": "ansi_cyan",
    "fate-plain": "ansi_default",
    "fate-unknown": "ansi_default",
}

READABLE = 4.5
"""Contrast with the background that text needs (WCAG 2.1, level AA)."""

DARK = Theme(
    name="specchat-dark",
    primary="#d99bc1",
    secondary="#4cc9a4",
    accent="#d99bc1",
    warning="#f2c14e",
    error="#f0824a",
    success="#4cc9a4",
    foreground="#d5dae2",
    background="#0f1218",
    surface="#151a22",
    panel="#1d242f",
    dark=True,
    variables={
        "border": "#2c3543",
        "border-blurred": "#2c3543",
        "footer-background": "#0f1218",
        "footer-key-foreground": "#d99bc1",
        "footer-description-foreground": "#8b94a3",
        "input-selection-background": "#d99bc1 30%",
        "block-cursor-background": "#d99bc1",
        "block-cursor-foreground": "#0f1218",
        "scrollbar": "#2c3543",
        "scrollbar-hover": "#3b475a",
        "scrollbar-active": "#d99bc1",
        "scrollbar-background": "#0f1218",
        "scrollbar-background-hover": "#0f1218",
        "scrollbar-background-active": "#0f1218",
        "scrollbar-corner-color": "#0f1218",
    },
)
LIGHT = Theme(
    name="specchat-light",
    primary="#96487a",
    secondary="#00735a",
    accent="#96487a",
    warning="#8a5a00",
    error="#b84300",
    success="#00735a",
    foreground="#2b303b",
    background="#fbfaf7",
    surface="#f3f1ec",
    panel="#e9e6df",
    dark=False,
    variables={
        "border": "#d5d1c7",
        "border-blurred": "#d5d1c7",
        "footer-background": "#fbfaf7",
        "footer-key-foreground": "#96487a",
        "footer-description-foreground": "#6b7079",
        "input-selection-background": "#96487a 25%",
        "block-cursor-background": "#96487a",
        "block-cursor-foreground": "#fbfaf7",
        "scrollbar": "#d5d1c7",
        "scrollbar-hover": "#bdb8ab",
        "scrollbar-active": "#96487a",
        "scrollbar-background": "#fbfaf7",
        "scrollbar-background-hover": "#fbfaf7",
        "scrollbar-background-active": "#fbfaf7",
        "scrollbar-corner-color": "#fbfaf7",
    },
)


def colours(theme: Theme, variables: dict[str, str]) -> dict[str, str]:
    """Variables of our own, for a theme whose other variables these are; what a theme brings itself, wins.

    `quiet` and `faint` are solid, unlike Textual's `text-muted`, so that they can colour parts of a line.
    """
    if theme.ansi:
        return FATES_IN_16_COLOURS | {"quiet": "ansi_default", "faint": "ansi_bright_black"} | theme.variables
    foreground, background = Color.parse(variables["foreground"]), Color.parse(variables["background"])
    faint = foreground.blend(background, 0.72).hex
    tones = (FATES_ON_DARK if theme.dark else FATES_ON_LIGHT) | {"quiet": foreground.blend(background, 0.38).hex}
    readable = {name: _readable(Color.parse(tone), background).hex for name, tone in tones.items()}
    return readable | {"faint": faint} | theme.variables


def contrast(one: Color, other: Color) -> float:
    """The contrast ratio of two colours, 1 to 21 (WCAG 2.1)."""
    lighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _readable(tone: Color, background: Color) -> Color:
    """The tone, moved away from the background until it can be read on it."""
    end = Color(255, 255, 255) if _luminance(background) < 0.18 else Color(0, 0, 0)
    shades = (tone.blend(end, step / 20) for step in range(21))
    return next((shade for shade in shades if contrast(shade, background) >= READABLE), end)


def _luminance(colour: Color) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour.normalized]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
