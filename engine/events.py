"""Events of the engine: immutable, picklable records that need neither torch nor a model.

`Round` is the central one: colours, panel, statistics, traces, replay and benchmarks are made from it and nothing else.
Every record serialises to one JSON line (`engine.trace`). Times are in seconds; `at` counts from the creation of the
engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Fate(StrEnum):
    """Fate of one token. The first three are of drafted tokens, the others of a round's last token."""

    ACCEPTED = "accepted"
    """Drafted, and accepted by the target."""
    REJECTED = "rejected"
    """Drafted, and rejected by the target."""
    DISCARDED = "discarded"
    """Drafted behind a rejection, not tested."""
    CORRECTION = "correction"
    """Drawn from the residual norm(max(0, p - q)) after a rejection."""
    BONUS = "bonus"
    """Drawn from p after all drafted tokens were accepted."""
    PLAIN = "plain"
    """Drawn from p in a round without a draft."""
    UNKNOWN = "unknown"
    """Part of the reply of a server that does not say what became of it."""


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


class Token(NamedTuple):
    """One token as displayed. `place` is its index among the round's tokens, in display order."""

    id: int
    text: str
    fate: Fate
    place: int


class Candidate(NamedTuple):
    """One entry of a top-k list: a token, its text, and its probability."""

    id: int
    """Token id."""
    text: str
    """Its text on its own."""
    probability: float
    """Its probability in the list's distribution."""


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


class Refused(NamedTuple):
    """A further token of a tree that was tested for a position and rejected."""

    id: int
    """Token id."""
    text: str
    """Its text on its own."""
    p: float
    """p(x) at this token's turn: of the residual after the rejections before it."""
    q: float
    """q(x) at this token's turn."""
    u: float
    """The uniform draw: it was rejected as u·q ≥ p."""


@dataclass(frozen=True, slots=True)
class Detail:
    """Top-k lists and entropies (nats) of one tested position, for requests with `Request.detail` > 0."""

    target: tuple[Candidate, ...]
    """The likeliest tokens of p; of a greedy reply, of the softmax at temperature 1."""
    draft: tuple[Candidate, ...]
    """Empty if nothing was drafted there."""
    residual: tuple[Candidate, ...]
    """norm(max(0, p - q)); only at a correction."""
    target_entropy: float
    """Entropy of p, in nats."""
    draft_entropy: float
    """Entropy of q, in nats; 0 if nothing was drafted there."""
    probability: float | None = None
    """Of the position's own token (the tested one, or `Round.last`) under the distribution that `target` lists; None in
    traces older than version 3."""


@dataclass(frozen=True, slots=True)
class Round:
    """One draft and one verification for one request (Leviathan et al. 2023, Algorithm 1).

    `drafted[:accepted]` and then `last` were emitted. If `accepted < len(p)`, `drafted[accepted]` was rejected and
    the tokens behind it were discarded. `p`, `q`, `u` and `beta` hold one value per *tested* token: p(x) and q(x) under
    the standardised distributions, the uniform draw u (accepted iff u·q < p; with a lenience l, iff u·l·q < p), and
    β = Σ min(p, q).

    A drafter may offer several tokens for one position (`engine.runner.tree`), which are tested one after the other.
    Then `drafted` holds the accepted one, or the first if none was, and behind a rejection the first choices of that
    branch. Other rejected tokens are in `refused`; p and q are the residuals at each token's turn, and β is the
    probability that one of the tokens offered is accepted.

    A round may be put together from what another server says (`observed`). Then `p`, `q`, `u` and `beta` are empty,
    token ids are -1, pieces of rejected and discarded tokens are empty, all of the time is in `rest_s`, which counts
    from the text before, and `last_fate` is UNKNOWN where nothing was said of the token.
    """

    request_id: str
    """The request that this round was for."""
    number: int
    """0 for the request's first round."""
    position: int
    """Tokens of prompt and reply before this round."""
    drafter: str
    """What proposed the tokens."""
    gamma: int
    """Draft length asked for; the drafter may have drafted fewer."""
    drafted: tuple[int, ...]
    """Drafted token ids."""
    p: tuple[float, ...]
    """p(x) of each tested token."""
    q: tuple[float, ...]
    """q(x) of each tested token."""
    u: tuple[float, ...]
    """The uniform draw of each tested token."""
    beta: tuple[float, ...]
    """β = Σ min(p, q) at each tested position."""
    accepted: int
    """How many drafted tokens were accepted."""
    last: int | None
    """The correction, bonus or plain token; None if the request ended inside the accepted tokens."""
    last_fate: Fate | None
    """Fate of `last`; None without one."""
    pieces: tuple[str, ...]
    """Text per drafted token. Over a request, the emitted pieces and `Finished.tail` concatenate to the reply."""
    last_piece: str
    """Text of `last`."""
    at: float
    """Time of the round's end."""
    draft_s: float
    """Time of drafting."""
    verify_s: float
    """Time of the target's pass and of acceptance."""
    rest_s: float
    """Time of the round outside draft and verification."""
    rows: int
    """B: requests that shared this round; the three times are of the whole batch."""
    detail: tuple[Detail, ...] = ()
    """One per tested token, then one for `last`; empty unless asked for."""
    refused: tuple[tuple[Refused, ...], ...] = ()
    """Per tested token, the other tokens rejected at its position, in order; empty for a chain."""
    offered: int = 0
    """Tokens of the tree; 0 for a chain."""
    plain_s: float = 0.0
    """Time of a pass over one token of each row of the batch, measured just before this round; 0 where none was."""
    judged: int | None = None
    """Number of tested tokens of an observed round; None of a round of an engine of ours, where `p` has them."""

    @property
    def observed(self) -> bool:
        """Whether it was put together from what another server says."""
        return self.judged is not None

    @property
    def tested(self) -> int:
        """Number of tested tokens: the accepted ones and the rejected one."""
        return len(self.p) if self.judged is None else self.judged

    @property
    def verified(self) -> int:
        """K: drafted tokens in the target's pass."""
        return self.offered or len(self.drafted)

    @property
    def wasted(self) -> int:
        """Drafted tokens that are not part of the reply."""
        return self.verified - self.accepted

    @property
    def steps(self) -> int:
        """Positions drafted for."""
        return self.gamma if self.offered else len(self.drafted)

    @property
    def seconds(self) -> float:
        """Duration of the whole round."""
        return self.draft_s + self.verify_s + self.rest_s

    @property
    def emitted(self) -> tuple[int, ...]:
        """Token ids this round added to the reply, in order."""
        head = self.drafted[: self.accepted]
        return head if self.last is None else (*head, self.last)

    @property
    def text(self) -> str:
        """Text this round added to the reply."""
        return "".join(self.pieces[: self.accepted]) + self.last_piece

    def tokens(self) -> Iterator[Token]:
        """All tokens of the round in display order: accepted, rejected, discarded, then the last."""
        for i, (token, piece) in enumerate(zip(self.drafted, self.pieces, strict=True)):
            if i < self.accepted:
                fate = Fate.ACCEPTED
            elif i < self.tested:
                fate = Fate.REJECTED
            else:
                fate = Fate.DISCARDED
            yield Token(token, piece, fate, i)
        if self.last is not None and self.last_fate is not None:
            yield Token(self.last, self.last_piece, self.last_fate, len(self.drafted))


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
    """Display name of the draft model or head, if there is one."""
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
