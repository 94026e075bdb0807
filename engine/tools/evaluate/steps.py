"""Work that is done in steps, between which others have their turn."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

_Result = TypeVar("_Result")


def finish(steps: Generator[None, None, _Result]) -> _Result:
    """Do all steps at once; what they return."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: _Result = end.value
            return result
