"""The two themes of specchat, readable colours for every theme, and the choice of a theme.

The fates' colours are from the palette of Okabe and Ito, which people with any kind of colour blindness can
distinguish, made lighter on dark ground and darker on light ground. No fate relies on its colour: each also has an
attribute.
"""

from collections.abc import Iterable

from textual.app import App
from textual.color import Color
from textual.theme import BUILTIN_THEMES, Theme
from textual.widget import Widget

from specchat.app.errors import UsageError

_FATES = {  # on dark ground, on light ground, in 16 colours
    "accepted": ("#4cc9a4", "#00735a", "ansi_green"),
    "rejected": ("#f0764a", "#a33a00", "ansi_red"),
    "discarded": ("#868d99", "#60646c", "ansi_bright_black"),
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
VISIBLE = 3.0
"""Contrast that signs need."""
QUIET = 1.4
"""Contrast of frames without the focus."""
STRONG = 7.0
"""Contrast of ordinary text, so that quiet text can be quieter."""
_GROUNDS = {"surface": 1.1, "panel": 1.25, "highlight": 1.4}
"""Maximum contrast of other grounds with the background, so that the same colours can be read on all of them."""

DARK = Theme(
    name="specchat-dark", dark=True,
    primary="#d99bc1", secondary="#4cc9a4", warning="#f2c14e", error="#f0824a", success="#4cc9a4", accent="#d99bc1",
    foreground="#d5dae2", background="#0f1218", surface="#151a22", panel="#1d242f",
)  # fmt: skip
LIGHT = Theme(
    name="specchat-light", dark=False,
    primary="#96487a", secondary="#00735a", warning="#8a5a00", error="#b84300", success="#00735a", accent="#96487a",
    foreground="#2b303b", background="#fbfaf7", surface="#f3f1ec", panel="#e9e6df",
)  # fmt: skip


def check_theme(name: str, own: Iterable[str] = ()) -> None:
    """Check the name of a theme: Textual's, specchat's, or one of the user's `own`.

    Raises:
        UsageError: there is no such theme.
    """
    if name not in (known := list(dict.fromkeys((DARK.name, LIGHT.name, *sorted((*BUILTIN_THEMES, *own)))))):
        raise UsageError(f"theme {name!r} is not known: choose one of {', '.join(known)}")


def theme_colours(theme: Theme, variables: dict[str, str]) -> dict[str, str]:
    """The colours of the app for a theme with these variables, all of them readable.

    Grounds are moved towards the background, and text and signs away from it, until their contrast is enough. Frames
    and bars of what has no focus are quiet. Variables that a theme of the user defines have priority. `quiet` and
    `faint` are solid, unlike Textual's `text-muted`, so that they can colour parts of a line.
    """
    if theme.ansi:
        own = {"quiet": "ansi_default", "faint": "ansi_bright_black", "highlight": f"{variables['primary']} 25%"}
        return FATES_IN_16_COLOURS | own | theme.variables
    background, foreground = Color.parse(variables["background"]), Color.parse(variables["foreground"])
    grounds = {name: background + Color.parse(variables[name]) for name in ("surface", "panel")}
    grounds["highlight"] = grounds["surface"].blend(Color.parse(variables["primary"]), 0.25)
    grounds = {name: _flat(ground, background, _GROUNDS[name]) for name, ground in grounds.items()}
    panel, worst = grounds["panel"], grounds["highlight"]
    fates = FATES_ON_DARK if theme.dark else FATES_ON_LIGHT
    tones = {name: _apart(Color.parse(tone), panel, READABLE) for name, tone in fates.items()}
    tones |= {name: _apart(Color.parse(variables[name]), worst, READABLE) for name in _COLOURS}
    tones["foreground"] = _apart(foreground, worst, STRONG)
    tones["quiet"] = _apart(foreground.blend(background, 0.38), worst, READABLE)
    tones["faint"] = _apart(foreground.blend(background, 0.72), panel, VISIBLE)
    tones["border"] = _apart(foreground.blend(background, 0.84), background, QUIET)
    colours = {name: colour.hex for name, colour in (grounds | tones).items()}
    colours["background"] = background.hex
    colours |= {name: colours[role] for role, names in _ROLES.items() for name in names.split()}
    return colours | ({} if BUILTIN_THEMES.get(theme.name) is theme else theme.variables)


_COLOURS = "primary", "secondary", "accent", "warning", "error", "success"
_ROLES = {
    "primary": "footer-key-foreground block-cursor-background scrollbar-active link-background-hover",
    "foreground": "input-selection-foreground input-cursor-background block-cursor-blurred-foreground "
    "screen-selection-foreground",
    "quiet": "footer-foreground footer-description-foreground text-muted text-disabled foreground-muted "
    "foreground-disabled scrollbar-hover",
    "border": "border-blurred scrollbar",
    "highlight": "input-selection-background screen-selection-background",
    "panel": "block-cursor-blurred-background block-hover-background",
    "background": "footer-background footer-item-background footer-key-background footer-description-background "
    "block-cursor-foreground input-cursor-foreground link-color-hover scrollbar-background "
    "scrollbar-background-hover scrollbar-background-active scrollbar-corner-color",
}
"""Textual's variables that have one of the app's colours."""


def contrast(one: Color, other: Color) -> float:
    """The contrast ratio of two colours, 1 to 21 (WCAG 2.1)."""
    lighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _apart(tone: Color, ground: Color, ratio: float) -> Color:
    """The tone with at least this contrast to the ground: made lighter or darker, whichever the ground allows."""
    end = Color(255, 255, 255) if _luminance(ground) < 0.18 else Color(0, 0, 0)
    shades = (tone.blend(end, step / 20) for step in range(21))
    return next((shade for shade in shades if contrast(shade, ground) >= ratio), end)


def _flat(ground: Color, background: Color, most: float) -> Color:
    """The ground with at most this contrast to the background."""
    shades = (ground.blend(background, step / 20) for step in range(21))
    return next(shade for shade in shades if contrast(shade, background) <= most)


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
        """Draw each theme that is chosen after this call, once the app runs."""

        def changed(_: Theme) -> None:
            # Textual tells widgets of it before their component classes have the new colours.
            for screen in self._app.screen_stack:
                for widget in screen.walk_children(Widget, with_self=True):
                    widget.notify_style_update()
                    widget.refresh()

        self._app.theme_changed_signal.subscribe(self._app, changed)
