"""What fails in place of something that works."""

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import Mock


def fails(error: BaseException) -> Callable[..., Any]:
    """A function that raises this, whatever it is called with."""
    return Mock(side_effect=error)


untouched = fails(AssertionError("it should not be called"))


@contextmanager
def files_of_at_most(length: int) -> Iterator[None]:
    """No file of this process can grow beyond this many bytes, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (length, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
