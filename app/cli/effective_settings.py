"""The settings that count for a command."""

from collections.abc import Mapping

from specchat.app.cli.progress import warn
from specchat.app.paths import settings_file
from specchat.app.settings.settings import Settings
from specchat.app.settings.settings_file import load_settings


def effective_settings(given: Mapping[str, object] | None = None, *, profiled: bool = True) -> Settings:
    """The settings with the given options; a problem with their file is printed on stderr.

    Raises:
        SettingsError: a value is out of range.
    """
    settings, notice = load_settings(settings_file(), given, profiled=profiled)
    warn(notice)
    return settings
