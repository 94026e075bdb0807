"""Commands that other threads send to the engine thread."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from specchat.engine.message import Message, Tool
from specchat.engine.outbox import Outbox
from specchat.engine.request import Request


@dataclass(frozen=True, slots=True)
class Submit:
    """Generate a reply; its events go to `outbox`. `at` is the time of submission on the engine's clock."""

    request: Request
    outbox: Outbox
    at: float
    lane: int = 0
    """Lane to run in, for an engine with lanes (`engine.lanes.engine`)."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """End a request within one round; tokens already emitted stay."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Adjust:
    """Change drafter and γ of a request from the next round on. The distribution of its tokens stays the same."""

    request_id: str
    drafter: str
    gamma: int | None
    """`Request.gamma` from then on."""


@dataclass(frozen=True, slots=True)
class KeepTexts:
    """Write the cache of the latest texts to files, see `Engine.keep_texts`."""

    names: Mapping[str, str]
    result: Future[None]


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop running rounds until `Step` or `Resume`."""


@dataclass(frozen=True, slots=True)
class Step:
    """Run one more round and stay paused."""


@dataclass(frozen=True, slots=True)
class Resume:
    """End a pause."""


@dataclass(frozen=True, slots=True)
class SetDetail:
    """Set the top-k size of a request's `Detail` from the next round on; 0 sends none."""

    request_id: str
    detail: int


@dataclass(frozen=True, slots=True)
class Count:
    """Count the prompt tokens of these messages (`events.Counted`)."""

    messages: tuple[Message, ...]
    key: str = ""
    """Copied to the answer."""
    tools: tuple[Tool, ...] = ()
    """Tools that are part of the prompt."""


@dataclass(frozen=True, slots=True)
class ShowCache:
    """Report what the cache holds (`events.CacheUse`)."""


@dataclass(frozen=True, slots=True)
class Borrow:
    """Run other work with the loaded models, one step between two rounds."""

    work: Callable[[Any, int], Generator[None, None, Any]]
    """Generator function: arguments are the `worker.assembly.Assembly` and a reserved cache slot."""
    result: Future[Any]
    """Receives the return value or an `EngineError`; cancelling it ends the work."""


@dataclass(frozen=True, slots=True)
class Close:
    """End the engine thread."""


Command = Submit | Cancel | Adjust | Pause | Step | Resume | SetDetail | Count | ShowCache | KeepTexts | Borrow | Close
