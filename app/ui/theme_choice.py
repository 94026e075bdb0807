"""The theme of the interface: the one it begins with, and keeping the one that is chosen."""

from __future__ import annotations

from textual.app import App
from textual.theme import Theme

from specchat.app.settings.preferences import Preferences
from specchat.app.settings.settings import Settings
from specchat.app.ui import themes


class ThemeChoice:
    """Registers specchat's own themes and sets the first one.

    Args:
        app: Has the theme.
        theme: The theme to begin with, by name; empty for specchat's own.
    """

    def __init__(self, app: App[None], theme: str) -> None:
        self._app = app
        self._kept = ""
        app.register_theme(themes.DARK)
        app.register_theme(themes.LIGHT)
        own = theme or themes.DARK.name
        if own not in (themes.DARK.name, themes.LIGHT.name):
            app.theme = theme if theme in app.available_themes else themes.DARK.name
            return
        # Set without a watcher, so that the first frame is styled only once.
        app.set_reactive(App.theme, own)
        app.set_class(app.current_theme.dark, "-dark-mode", update=False)
        app.set_class(not app.current_theme.dark, "-light-mode", update=False)
        app.stylesheet.set_variables(app.get_css_variables())

    def change(self, theme: str) -> None:
        """Set another theme, if it is one."""
        if theme in self._app.available_themes and theme != self._app.theme:
            self._app.theme = theme

    def keep(self, preferences: Preferences | None) -> None:
        """From here on, store each theme that is chosen for the next start; without preferences, none."""
        self._kept = self._app.theme

        def store(theme: Theme) -> None:
            if theme.name != self._kept and preferences is not None:
                self._kept = theme.name
                preferences.remember(Settings(theme=theme.name), ["theme"])

        self._app.theme_changed_signal.subscribe(self._app, store)
