"""Events of the engine: immutable, picklable records that need neither torch nor a model.

`engine.round.Round` is the central one. Every record serialises to one JSON line (`engine.trace`). Times are in
seconds; `at` counts from the creation of the engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from specchat.engine.round import Round


class FinishReason(StrEnum):
    """Reason why a request ended."""

    EOS = "eos"
    STOP = "stop"
    """A stop string was completed."""
    LENGTH = "length"
    """`Request.max_tokens` were emitted."""
    CONTEXT = "context"
    """The context is full."""
    CANCELLED = "cancelled"
    ERROR = "error"


MOST_DRAFTED = 4096
"""Drafted tokens of a step: what a server says beyond it is no count."""


class Step(NamedTuple):
    """What a server says of one target pass: how much was drafted for it, and how much of that it accepted."""

    drafted: int
    """Drafted tokens."""
    accepted: int
    """How many of them were accepted."""


class Given(NamedTuple):
    """A token of a reply that came with its request (`Request.reply_ids`), and the text that is whole with it."""

    id: int
    """Token id."""
    text: str
    """The text that is whole with it."""


class Thinking(NamedTuple):
    """What stands around the thinking in a reply's text."""

    opening: str
    """The marker before it."""
    closing: str
    """The marker behind it."""
    begun: bool
    """Whether the opening marker ends the prompt: the reply then begins inside."""


@dataclass(frozen=True, slots=True)
class Loading:
    """Progress of loading. `stage` is one of import, fetch, convert, target, draft, warm-up."""

    stage: str
    """What is being done: import, fetch, convert, target, draft, warm-up."""
    text: str
    """A short sentence for the user, without a trailing full stop."""
    fraction: float | None
    """0 to 1, or None where the length is unknown."""
    at: float
    """Time of this event."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The models are loaded and requests are served."""

    target: str
    """Display name of the target model."""
    draft: str | None
    """Display name of the draft model or head, if there is one; of several, with commas between."""
    drafters: tuple[str, ...]
    """Drafter names a request may ask for, best first."""
    device: str
    """cpu or cuda."""
    device_name: str
    """Name of the device."""
    dtype: str
    """Format of the weights."""
    context: int
    """Tokens per slot, prompt and reply together."""
    slots: int
    """Requests that run at once."""
    weight_bytes: int
    """Memory of the weights."""
    cache_bytes: int
    """Memory of the KV caches."""
    at: float
    """Time of this event."""
    plain_s: tuple[float, ...] = ()
    """Times of the target's passes over one token of one row, measured while warming up."""
    thinking_switch: bool = False
    """Whether the chat template can switch thinking on and off (`Request.thinking`)."""
    template_words: tuple[str, ...] = ()
    """Words with a slash before them that the chat template looks for in a conversation."""
    conversations: bool = True
    """Whether requests may have messages; an encoder-decoder reads `Request.prompt` or `Request.prompt_ids` alone."""
    observed: str = ""
    """Name of the server whose replies are observed; empty for an engine of ours. What it does not say is empty or 0:
    slots, context, bytes, device."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request has a slot. `reused_tokens` of its prompt were in the KV cache already."""

    request_id: str
    """The request."""
    prompt_tokens: int
    """Tokens of its prompt."""
    reused_tokens: int
    """Tokens of the prompt that were in the KV cache already."""
    queued_s: float
    """Time between submission and this event."""
    at: float
    """Time of this event."""
    given: tuple[Given, ...] = ()
    """Tokens that the reply begins with, as the request gave them; `prompt_tokens` counts them."""
    thinking: Thinking | None = None
    """What stands around the model's thinking; None for a model that does not think."""
    left_out: tuple[int, ...] = ()
    """Places in `Request.messages` of those that the prompt is without, as they did not fit (`Request.when_full`)."""


@dataclass(frozen=True, slots=True)
class Prefilled:
    """One more chunk of the prompt is in the KV cache: `done` of `total` tokens."""

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
    """Information for the user that is not an error. `request_id` is None if it concerns the engine as a whole."""

    request_id: str | None
    """The request that is meant; None for the engine as a whole."""
    text: str
    """One sentence."""
    at: float
    """Time of this event."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Tokens that a conversation takes as a prompt, asked for with `Engine.count`."""

    tokens: int
    """Tokens of the prompt."""
    at: float
    """Time of this event."""
    key: str = ""
    """What the question was called."""


@dataclass(frozen=True, slots=True)
class Totals:
    """What another server says of a reply as a whole, at its end. What it does not say is None."""

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
    """How many of them were accepted."""
    steps: tuple[Step, ...] | None = None
    """Every pass that tested drafts, in order. With them, tokens that came with an unknown fate are told apart."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A request has ended; its last event. `message` is the sentence to show if `reason` is ERROR."""

    request_id: str
    """The request."""
    reason: FinishReason
    """Why it ended."""
    tail: str
    """Text still held back at the end (half a character, or the beginning of a stop string)."""
    message: str
    """The sentence to show if `reason` is error."""
    at: float
    """Time of this event."""


@dataclass(frozen=True, slots=True)
class Died:
    """The engine thread has ended on an error, and with it all open requests."""

    message: str
    """Why, as a sentence."""
    at: float
    """Time of this event."""


Event = Loading | Ready | Admitted | Prefilled | Round | Notice | Counted | Totals | Finished | Died
