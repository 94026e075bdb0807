"""Errors of the app, each with one sentence for the user; the engine's are `engine.EngineError`."""

from collections.abc import Iterator
from contextlib import contextmanager


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


@contextmanager
def explained(sentence: str, kind: type[AppError] = UsageError) -> Iterator[None]:
    """Raise an error of the operating system as one of the app: the sentence, followed by the reason."""
    try:
        yield
    except OSError as error:
        raise kind(f"{sentence}: {error.strerror or error}") from error
