"""The two themes of specchat, colours of the fates for every theme, and the choice of a theme.

The fates' colours are from the palette of Okabe and Ito, which people with any kind of colour blindness can
distinguish, made lighter on dark ground and darker on light ground. No fate relies on its colour: each also has an
attribute.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from textual.app import App
from textual.color import Color
from textual.theme import BUILTIN_THEMES, Theme
from textual.widget import Widget

from specchat.app.errors import UsageError

_FATES = {  # on dark ground, on light ground, in 16 colours
    "accepted": ("#4cc9a4", "#00735a", "ansi_green"),
    "rejected": ("#ff8a50", "#a33a00", "ansi_red"),
    "discarded": ("#a0a8b4", "#4f5560", "ansi_bright_black"),
    "correction": ("#f2b441", "#8a5a00", "ansi_yellow"),
    "bonus": ("#6cbdf2", "#00619c", "ansi_cyan"),
    "plain": ("#d5dae2", "#2b303b", "ansi_default"),
    "unknown": ("#d5dae2", "#2b303b", "ansi_default"),
}
FATES_ON_DARK, FATES_ON_LIGHT, FATES_IN_16_COLOURS = (
    {f"fate-{fate}": tones[ground] for fate, tones in _FATES.items()} for ground in range(3)
)

READABLE = 4.5
"""Contrast with the background that text needs (WCAG 2.1, level AA)."""


def _theme(name: str, *, dark: bool, border: str, hover: str, quiet: str, selection: int, **colours: Any) -> Theme:
    """One of specchat's themes; its footer, cursor and scroll bars have the colours of text, primary and background."""
    primary, background = colours["primary"], colours["background"]
    variables = {
        "border": border, "border-blurred": border,
        "footer-background": background, "footer-key-foreground": primary, "footer-description-foreground": quiet,
        "input-selection-background": f"{primary} {selection}%",
        "block-cursor-background": primary, "block-cursor-foreground": background,
        "scrollbar": border, "scrollbar-hover": hover, "scrollbar-active": primary, "scrollbar-background": background,
        "scrollbar-background-hover": background, "scrollbar-background-active": background,
        "scrollbar-corner-color": background,
    }  # fmt: skip
    return Theme(name=name, accent=primary, success=colours["secondary"], dark=dark, variables=variables, **colours)


DARK = _theme(
    "specchat-dark", dark=True,
    primary="#d99bc1", secondary="#4cc9a4", warning="#f2c14e", error="#f0824a", foreground="#d5dae2",
    background="#0f1218", surface="#151a22", panel="#1d242f", border="#2c3543", hover="#3b475a", quiet="#8b94a3",
    selection=30,
)  # fmt: skip
LIGHT = _theme(
    "specchat-light", dark=False,
    primary="#96487a", secondary="#00735a", warning="#8a5a00", error="#b84300", foreground="#2b303b",
    background="#fbfaf7", surface="#f3f1ec", panel="#e9e6df", border="#d5d1c7", hover="#bdb8ab", quiet="#6b7079",
    selection=25,
)  # fmt: skip


def check_theme(name: str, own: Iterable[str] = ()) -> None:
    """Check the name of a theme: Textual's, specchat's, or one of the user's `own`.

    Raises:
        UsageError: there is no such theme.
    """
    if name not in (known := list(dict.fromkeys((DARK.name, LIGHT.name, *sorted((*BUILTIN_THEMES, *own)))))):
        raise UsageError(f"theme {name!r} is not known: choose one of {', '.join(known)}")


def theme_colours(theme: Theme, variables: dict[str, str]) -> dict[str, str]:
    """The fates' colours for a theme with these variables; colours that the theme itself defines have priority.

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
    """The tone with enough contrast to the background."""
    end = Color(255, 255, 255) if _luminance(background) < 0.18 else Color(0, 0, 0)
    shades = (tone.blend(end, step / 20) for step in range(21))
    return next((shade for shade in shades if contrast(shade, background) >= READABLE), end)


def _luminance(colour: Color) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour.normalized]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


class ThemeChoice:
    """Registers specchat's own themes, and sets the chosen one.

    Args:
        app: Shows the theme.
        theme: Name of the first theme; empty for specchat's own.
    """

    def __init__(self, app: App[None], theme: str) -> None:
        self._app = app
        self.first = theme
        """The theme of the start; the user's own are registered later."""
        app.register_theme(DARK)
        app.register_theme(LIGHT)
        own = theme or DARK.name
        if own not in (DARK.name, LIGHT.name):
            app.theme = theme if theme in app.available_themes else DARK.name
            return
        # Set without watchers, so that the first frame is styled only once.
        app.set_reactive(App.theme, own)
        app.set_class(app.current_theme.dark, "-dark-mode", update=False)
        app.set_class(not app.current_theme.dark, "-light-mode", update=False)
        app.stylesheet.set_variables(app.get_css_variables())

    def change(self, theme: str) -> None:
        """Set the theme of the settings; empty for the present one.

        Raises:
            UsageError: there is no such theme.
        """
        if theme and theme != self._app.theme:
            check_theme(theme, self._app.available_themes)
            self._app.theme = theme

    def follow(self) -> None:
        """Draw each theme that is chosen from now on; to be called once the app runs."""

        def changed(_: Theme) -> None:
            # Textual tells widgets of it before their component classes have the new colours.
            for screen in self._app.screen_stack:
                for widget in screen.walk_children(Widget, with_self=True):
                    widget.notify_style_update()
                    widget.refresh()

        self._app.theme_changed_signal.subscribe(self._app, changed)
