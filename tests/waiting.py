"""Waiting for what other threads and programs do."""

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")
PATIENCE_S = 120
"""How long it is waited for what must come: a machine may be busy with many other things."""


def until(condition: Callable[[], Found], about: Callable[[], object] = str) -> Found:
    """What the condition gives once that is true; `about` says how it stands when it never is."""
    end = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < end, about() or "never true"
        time.sleep(0.02)
    return found
