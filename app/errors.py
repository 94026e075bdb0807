"""Errors of the app, each with one sentence for the user; the engine's are `engine.EngineError`."""

from __future__ import annotations


class AppError(Exception):
    """An error that the user can act on. The command line prints it on one line and exits with code 2."""


class StoreError(AppError):
    """Chats cannot be stored or read (no permission, full disk, missing row)."""


class LostRowError(StoreError):
    """A row is not in the store: a retry would not help."""


class SettingsError(AppError):
    """A setting has a value that is out of range, or the settings file cannot be written."""


class UsageError(AppError):
    """The command line asks for something that does not exist or does not go together."""
