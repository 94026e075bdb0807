"""The engine's exception type, and helpers for the sentences it carries."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class EngineError(Exception):
    """A failure with a cause the user can act on.

    The message is one sentence that names the thing (file, option, model) and says what to do. The command line prints
    it on one line and exits with code 2; the interface shows it as a notice.

    Args:
        message: the sentence.
        field: the field of a request that is wrong; None if it is not about one.
    """

    def __init__(self, message: str = "", field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class ClosingError(BaseException):
    """The engine is to end before it has been loaded. It is no `Exception`, so that no attempt to load catches it."""


def check(condition: object, sentence: str, field: str | None = None) -> None:
    """Check a condition.

    Raises:
        EngineError: it does not hold; `sentence` is the message, and `field` the field of the request.
    """
    if not condition:
        raise EngineError(sentence, field)


def check_system() -> None:
    """Check that specchat supports this operating system.

    Raises:
        EngineError: it does not.
    """
    check(sys.platform != "win32", "specchat runs on Linux and macOS: on Windows, install it inside WSL")


@contextmanager
def errors_as(
    sentence: Callable[[Any], str], kinds: type[Exception] | tuple[type[Exception], ...] = Exception
) -> Iterator[None]:
    """Context manager that turns exceptions into an EngineError; an EngineError passes through.

    Args:
        sentence: makes the message from the exception.
        kinds: of exceptions.
    """
    try:
        yield
    except EngineError:
        raise
    except kinds as error:
        raise EngineError(sentence(error)) from error


def first_line(error: BaseException) -> str:
    """First line of an error's message, for quoting inside a sentence; its type's name if it has no message."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
