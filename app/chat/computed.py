"""What was computed of a token after its reply had ended."""

from __future__ import annotations

from dataclasses import dataclass

from specchat.engine import Detail


@dataclass(frozen=True, slots=True)
class Computed:
    """The top-k lists of one token, computed afterwards."""

    detail: Detail | None
    """None if they could not be."""
    note: str
    """Why they could not be, or what has to be known of them; empty for nothing."""
