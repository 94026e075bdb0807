"""Events of the engine: immutable, picklable records that need neither torch nor a model; their queue and clock.

`engine.round.Round` is the central one. Every record serialises to one JSON line (`engine.trace`). Times are in
seconds; `at` counts from the creation of the engine, without pauses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from queue import Empty, SimpleQueue
from typing import NamedTuple

from specchat.engine.request import Constraint
from specchat.engine.round import Call, Round
from specchat.engine.settings import Sampling


class FinishReason(StrEnum):
    """Reason why a request ended."""

    EOS = "eos"
    STOP = "stop"
    """A stop string was completed."""
    LENGTH = "length"
    """`Request.max_tokens` were emitted."""
    CONTEXT = "context"
    """The context is full."""
    REPEATS = "repeats"
    """The reply repeats itself, and `Request.stop_repeats` is set."""
    CANCELLED = "cancelled"
    ERROR = "error"


MOST_DRAFTED = 4096
"""Maximum plausible number of drafted tokens per step in a server's report."""


class Step(NamedTuple):
    """One target pass as reported by a server."""

    drafted: int
    """Drafted tokens."""
    accepted: int
    """Accepted tokens."""


class Given(NamedTuple):
    """A token of a reply that its request prescribes (`Request.reply_ids`)."""

    id: int
    """Token id."""
    text: str
    """Text that it completes."""
    thinking: bool = False
    """Whether it is part of the model's thinking."""


class Thinking(NamedTuple):
    """Marks around the thinking in the text of a reply, of records in which `Round.thinking` does not tell it."""

    opening: str
    """The mark before it."""
    closing: str
    """The mark after it."""
    begun: bool
    """Whether the prompt ends with the opening marker, so that the reply begins with thinking."""


@dataclass(frozen=True, slots=True)
class Loading:
    """Progress of loading."""

    stage: str
    """One of import, fetch, convert, target, draft, warm-up."""
    text: str
    """A short sentence for the user, without a trailing full stop."""
    fraction: float | None
    """0 to 1, or None if unknown."""
    at: float
    """Time of this event."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The models are loaded and requests are served."""

    target: str
    """Display name of the target model."""
    draft: str | None
    """Display name of the draft model or head, or several separated by commas; None without one."""
    drafters: tuple[str, ...]
    """Names of the available drafters, best first."""
    device: str
    """cpu or cuda."""
    device_name: str
    """Name of the device."""
    dtype: str
    """Format of the weights."""
    context: int
    """Most tokens of a text, prompt and reply together."""
    slots: int
    """Maximum number of concurrent requests."""
    weight_bytes: int
    """Memory of the weights."""
    cache_bytes: int
    """Memory of the KV caches."""
    at: float
    """Time of this event."""
    graphs: int = 0
    """CUDA graphs captured so far; `Captured` says how many there are later."""
    graph_bytes: int = 0
    """Memory that was taken from the GPU for them."""
    warm_up_s: float = 0.0
    """Time of compiling, capturing and first passes."""
    plain_s: tuple[float, ...] = ()
    """Times of the target's passes over one token of one row, measured in the warm-up."""
    thinking_switch: bool = False
    """Whether the chat template can switch thinking (`Request.thinking`)."""
    thinking_values: tuple[str, ...] = ()
    """Values of the switch that the chat template knows: on, off, low, high."""
    template_words: tuple[str, ...] = ()
    """Slash commands that the chat template searches the conversation for."""
    conversations: bool = True
    """Whether requests may have messages; an encoder-decoder takes `Request.prompt` or `Request.prompt_ids` only."""
    slot_bytes: int = 0
    """Memory of one text of all columns in the target's cache: keys, values and a recurrent state."""
    kept_bytes: int = 0
    """Most memory for what was read of all texts, so that it need not be read again; a CPU takes it when it is used."""
    state_bytes: int = 0
    """Memory of a recurrent state, if the target has one; then drafts are chains."""
    observed: str = ""
    """Name of the server whose replies are observed; empty for specchat's engine. Facts that the server does not report
    are empty or 0: slots, context, bytes, device."""
    sampling: Sampling = field(default_factory=Sampling)
    """Sampling settings that the model's authors recommend; what they do not state is the default."""
    device_uuid: str = ""
    """Identifies the GPU, as NVML does without the prefix `GPU-`; empty on a CPU."""
    model_context: int = 0
    """Context length of the target: `context` is less if memory is short or less was requested."""
    tools: bool = False
    """Whether requests may have tools."""


@dataclass(frozen=True, slots=True)
class Captured:
    """One more CUDA graph was captured while requests are served."""

    graphs: int
    """CUDA graphs captured since the start."""
    graph_bytes: int
    """Memory that was taken from the GPU for them."""
    warm_up_s: float
    """Time of compiling, capturing and first passes."""
    left: int
    """Number of graphs that are still to be captured."""
    at: float
    """Time of this event."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request was assigned to a slot."""

    request_id: str
    """The request."""
    prompt_tokens: int
    """Tokens of its prompt."""
    reused_tokens: int
    """Prompt tokens that were in the KV cache already."""
    queued_s: float
    """Time between submission and this event."""
    at: float
    """Time of this event."""
    given: tuple[Given, ...] = ()
    """Prescribed tokens at the beginning of the reply; included in `prompt_tokens`."""
    thinking: Thinking | None = None
    """Marks in the text of the reply, in records of earlier versions; None if it has none."""
    left_out: tuple[int, ...] = ()
    """Indices in `Request.messages` of messages that were left out of the prompt (`Request.when_full`)."""
    sampling: Sampling | None = None
    """Sampling settings of the reply; None in records of earlier versions."""
    constraint: Constraint | None = None
    """What the reply follows; None for free text."""


@dataclass(frozen=True, slots=True)
class Prefilled:
    """One more chunk of the prompt is in the KV cache."""

    request_id: str
    """The request."""
    done: int
    """Tokens of the prompt in the KV cache."""
    total: int
    """Tokens of the prompt."""
    seconds: float
    """Duration of this chunk."""
    at: float
    """Time of this event."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Information for the user that is not an error."""

    request_id: str | None
    """The request; None if it concerns the engine as a whole."""
    text: str
    """One sentence."""
    at: float
    """Time of this event."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Answer to `Engine.count`."""

    tokens: int
    """Tokens of the prompt."""
    at: float
    """Time of this event."""
    key: str = ""
    """Key of the question."""


@dataclass(frozen=True, slots=True)
class CachedText:
    """Blocks of the cache that a request has filled."""

    request_id: str
    """The request that first read these tokens."""
    blocks: int
    """All of them, `shared` ones included."""
    shared: int
    """Blocks of them that are also the beginning of other texts."""
    running: bool
    """Whether the request is running."""


@dataclass(frozen=True, slots=True)
class CacheUse:
    """Answer to `Engine.show_cache`."""

    block_tokens: int
    """Tokens of a block."""
    block_bytes: int
    """Memory of a block in all caches."""
    blocks: int
    """Blocks of the cache; all that are in no text are free."""
    texts: tuple[CachedText, ...]
    """The latest last."""
    at: float
    """Time of this event."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Totals of a reply as reported by another server at its end; None for what it does not report."""

    request_id: str
    """The request."""
    at: float
    """Time of this event."""
    prompt_tokens: int | None = None
    """Tokens of its prompt."""
    tokens: int | None = None
    """Tokens of the reply."""
    passes: int | None = None
    """Target passes."""
    drafted: int | None = None
    """Drafted tokens."""
    accepted: int | None = None
    """Accepted tokens."""
    steps: tuple[Step, ...] | None = None
    """Every pass with drafts, in order; tokens received with an unknown fate get their fate from them."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A request has ended; its last event."""

    request_id: str
    """The request."""
    reason: FinishReason
    """Why it ended."""
    tail: str
    """Text held back at the end: an incomplete character, or the beginning of a stop string."""
    message: str
    """The sentence to show if `reason` is error."""
    at: float
    """Time of this event."""
    thinking: bool = False
    """Whether `tail` is part of the thinking."""
    calls: tuple[Call, ...] = ()
    """Calls of tools that the end of the reply completed; if empty, not in the trace."""


@dataclass(frozen=True, slots=True)
class Died:
    """The engine thread and all open requests have ended with an error."""

    message: str
    """The error, as a sentence."""
    at: float
    """Time of this event."""


@dataclass(frozen=True, slots=True)
class Speedup:
    """Speedup over plain decoding, as factors: predicted · acceptance · passes · overhead = measured, exactly."""

    c: float
    """Drafting time per drafted position / time of a plain pass."""
    predicted: float
    """Predicted speedup from the α estimate, c and the actual draft lengths (Leviathan et al. 2023, Theorem 3.8)."""
    measured: float
    """Time per token of plain rounds / time per token of these rounds."""
    error: float
    """Standard error of `measured`, relative to it."""
    acceptance: float
    """Tokens emitted / tokens expected if α were the same for every token; below 1 if it is not."""
    passes: float
    """Time of drafts and plain passes / time of drafts and verifications: cost of wider passes and longer contexts."""
    overhead: float
    """Effect of the time outside draft and verification, relative to plain rounds."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured of a reply by its end. It is stored with the reply, and later measurements do not change it."""

    request_id: str
    """The request."""
    gain: Speedup | None
    """Its speedup; None if it was not measured."""
    rounds: int
    """Number of rounds that the speedup is computed from."""
    read_s: float
    """Seconds to read a token of a prompt, in the fastest chunk until then; 0 if none was read."""


Event = (
    Loading | Ready | Captured | Admitted | Prefilled | Round | Notice | Counted | CacheUse | Totals | Finished | Died
)


class Outbox:
    """Queue of events: the engine appends; a reader drains it or blocks for the next event."""

    def __init__(self) -> None:
        self._events: SimpleQueue[Event] = SimpleQueue()

    def put(self, event: Event) -> None:
        """Append one event and wake a blocked reader."""
        self._events.put(event)

    def drain(self) -> list[Event]:
        """Remove and return all events; never blocks."""
        events: list[Event] = []
        with suppress(Empty):
            while True:
                events.append(self._events.get_nowait())
        return events

    def get(self, timeout: float | None = None) -> Event | None:
        """Remove and return the next event, or None if none arrives within `timeout` seconds."""
        with suppress(Empty):
            return self._events.get(timeout=timeout)
        return None


class Clock:
    """Clock that counts seconds while it runs. It is run and stopped by one thread and may be read by any.

    Args:
        runs: whether it runs from the start.
        now: monotonic time in seconds.
    """

    def __init__(self, *, runs: bool = True, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._state: tuple[float, float | None] = 0.0, now() if runs else None
        """Seconds up to the last change, and the time of that change if it runs; replaced as a whole for readers."""

    def __call__(self) -> float:
        """Seconds counted so far."""
        counted, since = self._state
        return counted if since is None else counted + self._now() - since

    @contextmanager
    def running(self) -> Iterator[None]:
        """Context manager during which the clock runs, and after which it is stopped."""
        self._state = self(), self._now()
        try:
            yield
        finally:
            self._state = self(), None

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Context manager during which the clock is stopped, and after which it runs."""
        self._state = self(), None
        try:
            yield
        finally:
            self._state = self(), self._now()
