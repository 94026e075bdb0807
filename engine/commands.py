"""What other threads ask of the engine thread."""

from __future__ import annotations

from dataclasses import dataclass

from engine.outbox import Outbox
from engine.request import Request


@dataclass(frozen=True, slots=True)
class Submit:
    """Generate a reply; its events go to `outbox`. `at` is the time of asking."""

    request: Request
    outbox: Outbox
    at: float
    lane: int = 0
    """Where the engine has lanes (`engine.lane_engine`): the one that is asked."""
    continuation: tuple[int, ...] = ()
    """Tokens behind the prompt that the reply goes on from."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """End a request within one round; what it has said stays said."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Adjust:
    """Draft otherwise for a request from the next round on. Which tokens may come, and how likely, stays the same."""

    request_id: str
    drafter: str
    gamma: int | None
    """As `Request.gamma`."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Run no further round, whoever waits for one, until told to."""


@dataclass(frozen=True, slots=True)
class Step:
    """Run one round more and stay paused."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Go on."""


@dataclass(frozen=True, slots=True)
class SetDetail:
    """From the next round on, send a running request the top-k of this size; 0 sends none."""

    request_id: str
    detail: int


@dataclass(frozen=True, slots=True)
class Close:
    """End the thread."""


Command = Submit | Cancel | Adjust | Pause | Step | Resume | SetDetail | Close
