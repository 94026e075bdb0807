"""Failures of the app's own files, each one sentence for the user; the engine's are `engine.EngineError`."""

from __future__ import annotations


class AppError(Exception):
    """A failure the user can act on. The command line prints the sentence on one line and exits with code 2."""


class StoreError(AppError):
    """Chats cannot be stored or read (no permission, a full disk, a lost row)."""


class LostRowError(StoreError):
    """A row is not in the store: to try again would not help."""


class SettingsError(AppError):
    """A setting has a value that is out of range, or the settings file cannot be written."""


class UsageError(AppError):
    """The command line asks for something that does not exist or does not go together."""
