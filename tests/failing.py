"""What fails in place of something that works."""

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock


def fails(error: BaseException) -> Callable[..., Any]:
    """A function that raises this, whatever it is called with."""
    return Mock(side_effect=error)


untouched = fails(AssertionError("it should not be called"))
