"""The name of the KV cache among the arguments of transformers' networks."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def cache_argument(forward: Callable[..., Any]) -> str:
    """Name of a forward pass's argument, and of what it returns: `cache` since transformers 5.24."""
    return "cache" if "cache" in inspect.signature(forward).parameters else "past_key_values"
