"""An engine that answers with recorded replies when a test tells it to: without a model, threads or a clock."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from specchat.app.chat.reply import Reply
from specchat.engine import EngineError, Round
from specchat.engine.events import CacheUse, Counted, Died, Event, Finished, FinishReason, Loading, Ready
from specchat.engine.request import Message, Request, Tool
from specchat.engine.trace import Record, read_trace

TRACES = Path(__file__).parents[2] / "assets" / "traces"

LOADING = Loading("target", "loading SmolLM2-135M-Instruct", 0.42, 0.9)


class Clock:
    """Time that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class RecordedEngine:
    """A source. Each request is answered with the next reply of the trace, up to the event that `give` allows."""

    def __init__(self, records: Iterable[Record]) -> None:
        records = list(records)
        self.submitted: list[Request] = []
        self.cancelled: list[str] = []
        self.adjusted: list[tuple[str, str, int | None]] = []
        self.slow_to_stop = False
        self.closed = self.started = self.paused = False
        self.details: list[tuple[str, int]] = []
        self.examined: list[tuple[Request, tuple[int, ...]]] = []
        self.refuse: str | None = None
        self.cache: CacheUse | None = None
        self.kept: list[dict[str, str]] = []
        self.ready = next(r for r in records if isinstance(r, Ready))
        self._replies = events_of_requests(records)
        self._out: list[Record] = []
        self.open: dict[str, list[Event]] = {}

    def start(self) -> None:
        self.started = True

    def submit(self, request: Request) -> None:
        if self.refuse:
            raise EngineError(self.refuse)
        recorded = self._replies[len(self.submitted) % len(self._replies)]
        self.submitted.append(request)
        self.open[request.request_id] = [replace(event, request_id=request.request_id) for event in recorded]

    def examine(self, request: Request, continuation: Sequence[int]) -> None:
        self.examined.append((request, tuple(continuation)))

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)
        if not self.slow_to_stop and self.open.pop(request_id, None) is not None:
            self._out.append(Finished(request_id, FinishReason.CANCELLED, "", "", 0.0))

    def tell(self, *events: Event) -> None:
        """Events that no trace has."""
        self._out += events

    def adjust(self, request_id: str, drafter: str, gamma: int | None) -> None:
        self.adjusted.append((request_id, drafter, gamma))

    def set_detail(self, request_id: str, detail: int) -> None:
        self.details.append((request_id, detail))

    def count(self, messages: tuple[Message, ...], key: str = "", tools: tuple[Tool, ...] = ()) -> None:
        """A token for each word, also of results of calls, and for each tool."""
        words = (word for message in messages for part in message.parts for word in part.text.split())
        self._out.append(Counted(len(tools) + sum(1 for _ in words), 0.0, key))

    def keep_texts(self, names: Mapping[str, str]) -> None:
        self.kept.append(dict(names))

    def show_cache(self) -> None:
        """What the test says that the cache holds."""
        self._out += [] if self.cache is None else [self.cache]

    def pause(self) -> None:
        self.paused = True

    def step(self) -> None:
        """Up to the next round of every open request."""
        for request_id, events in list(self.open.items()):
            self.give_to(request_id, next((n for n, event in enumerate(events, 1) if isinstance(event, Round)), None))

    def resume(self) -> None:
        self.paused = False

    def drain(self) -> list[Record]:
        out, self._out = self._out, []
        return out

    def close(self) -> None:
        self.closed = True

    def become_ready(self) -> None:
        """The models are loaded."""
        self._out.append(self.ready)

    def give(self, count: int | None = None) -> None:
        """The next `count` events (or all) of every open request."""
        for request_id in list(self.open):
            self.give_to(request_id, count)

    def give_to(self, request_id: str, count: int | None = None) -> None:
        """The next `count` events (or all) of one request."""
        events = self.open[request_id]
        self._out += events[:count]
        del events[:count]
        if not events:
            del self.open[request_id]

    def fail(self, message: str) -> None:
        """Every open request ends with this error."""
        for request_id in self.open:
            self._out.append(Finished(request_id, FinishReason.ERROR, "", message, 0.0))
        self.open.clear()

    def die(self, message: str) -> None:
        """The engine ends."""
        self.fail(message)
        self._out.append(Died(message, 0.0))


def trace(name: str = "chat") -> list[Record]:
    """The records of one of the traces that come with specchat."""
    return list(read_trace(TRACES / f"{name}.jsonl"))


def replied(events: Iterable[Event], name: str = "r") -> Reply:
    """The reply of these events."""
    reply = Reply(name)
    for event in events:
        reply.add(event)
    return reply


def events_of_requests(records: list[Record]) -> list[list[Event]]:
    """For each request its events."""
    ids = [r.request_id for r in records if isinstance(r, Request)]
    return [[r for r in records if not isinstance(r, Request) and getattr(r, "request_id", None) == i] for i in ids]
