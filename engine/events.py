"""What the engine says: immutable, picklable records that need neither torch nor a model to be read.

`Round` is the one everything is made from: colours, panel, statistics, traces, replay and benchmarks consume it and
nothing else. Every record serialises to one JSON line (`engine.trace`). Times are seconds; `at` counts from the
moment the engine started.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Fate(StrEnum):
    """What became of one token. The first three belong to drafted tokens, the others to a round's last token."""

    ACCEPTED = "accepted"
    """Drafted, and kept by the target."""
    REJECTED = "rejected"
    """Drafted, and refused by the target."""
    DISCARDED = "discarded"
    """Drafted behind a rejection, never judged."""
    CORRECTION = "correction"
    """Drawn from the residual norm(max(0, p - q)) after a rejection."""
    BONUS = "bonus"
    """Drawn from p after every drafted token was accepted."""
    PLAIN = "plain"
    """Drawn from p in a round that drafted nothing."""


class FinishReason(StrEnum):
    """Why a request ended."""

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
    """One token as it appears on screen. `place` counts the round's tokens in screen order."""

    id: int
    text: str
    fate: Fate
    place: int


class Candidate(NamedTuple):
    """One entry of a top-k list: a token, its text, and its probability."""

    id: int
    text: str
    probability: float


class Refused(NamedTuple):
    """A token that was offered for a position beside the one that stands there, and refused by the target."""

    id: int
    text: str
    p: float
    """p(x) as it was when it was this token's turn: behind the refusals before it."""
    q: float
    """q(x), likewise."""
    u: float


@dataclass(frozen=True, slots=True)
class Detail:
    """Top-k view of one judged position, only for requests with `Request.detail` > 0. Entropies in nats."""

    target: tuple[Candidate, ...]
    draft: tuple[Candidate, ...]
    """Empty where nothing was drafted."""
    residual: tuple[Candidate, ...]
    """norm(max(0, p - q)); only at a correction."""
    target_entropy: float
    draft_entropy: float


@dataclass(frozen=True, slots=True)
class Round:
    """One draft and one verification for one request (Leviathan et al. 2023, Algorithm 1).

    `drafted[:accepted]` and then `last` were emitted. If `accepted < len(p)`, `drafted[accepted]` was rejected and
    everything behind it discarded. `p`, `q`, `u` and `beta` hold one value per *tested* token: p(x) and q(x) under
    the standardised distributions, the uniform draw u (accepted iff u·q < p; with a lenience l, iff u·l·q < p), and
    β = Σ min(p, q).

    A drafter may offer several tokens for one position (`engine.tree`), which are judged one after the other. Then
    `drafted` has the one that was kept, or the first if none was, and behind a rejection the first choices that went
    with it; the others that were refused are in `refused`, p and q are as the refusals before left them, and β is the
    probability that one of those offered is kept.
    """

    request_id: str
    number: int
    """0 for the request's first round."""
    position: int
    """Tokens in the context before this round, the one being fed included."""
    drafter: str
    gamma: int
    """Draft length asked for; the drafter may have offered fewer."""
    drafted: tuple[int, ...]
    p: tuple[float, ...]
    q: tuple[float, ...]
    u: tuple[float, ...]
    beta: tuple[float, ...]
    accepted: int
    last: int | None
    """The correction, bonus or plain token; None if the request ended inside the accepted tokens."""
    last_fate: Fate | None
    pieces: tuple[str, ...]
    """Text per drafted token. Over a request, the emitted pieces and `Finished.tail` concatenate to the reply."""
    last_piece: str
    at: float
    """When the round ended."""
    draft_s: float
    verify_s: float
    rest_s: float
    """Everything of the round that is neither draft nor verification."""
    rows: int
    """Requests that shared this round; the three times are the whole batch's."""
    detail: tuple[Detail, ...] = ()
    """One per tested token, then one for `last`."""
    refused: tuple[tuple[Refused, ...], ...] = ()
    """For each tested token what was refused beside it, in order; empty where one token was drafted per position."""
    offered: int = 0
    """Tokens drafted in all where there were several for a position, else 0."""

    @property
    def tested(self) -> int:
        """Drafted tokens the target judged: the accepted ones and the rejected one."""
        return len(self.p)

    @property
    def verified(self) -> int:
        """Drafted tokens in the target's pass."""
        return self.offered or len(self.drafted)

    @property
    def wasted(self) -> int:
        """Drafted tokens that are no part of the reply."""
        return self.verified - self.accepted

    @property
    def steps(self) -> int:
        """Positions that were drafted for."""
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
        """Every token of the round in screen order: accepted, rejected, discarded, then the last."""
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
    """Progress of getting ready. `stage` is one of import, fetch, convert, target, draft, warm-up."""

    stage: str
    text: str
    """A short sentence for the user, without a trailing full stop."""
    fraction: float | None
    """0 to 1, or None where the length is unknown."""
    at: float


@dataclass(frozen=True, slots=True)
class Ready:
    """The models are loaded; requests are served from here on."""

    target: str
    """Display name of the target model."""
    draft: str | None
    drafters: tuple[str, ...]
    """Names a request may ask for, best first."""
    device: str
    device_name: str
    dtype: str
    context: int
    """Tokens that fit into one slot, prompt and reply together."""
    slots: int
    weight_bytes: int
    cache_bytes: int
    at: float


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request has a slot. `reused_tokens` of its prompt were in the cache already."""

    request_id: str
    prompt_tokens: int
    reused_tokens: int
    queued_s: float
    """Time between submission and this event."""
    at: float


@dataclass(frozen=True, slots=True)
class Prefilled:
    """One more chunk of the prompt is in the cache: `done` of `total` tokens."""

    request_id: str
    done: int
    total: int
    seconds: float
    at: float


@dataclass(frozen=True, slots=True)
class Notice:
    """Something the user should know that is not an error. `request_id` is None where it concerns the engine."""

    request_id: str | None
    text: str
    at: float


@dataclass(frozen=True, slots=True)
class Finished:
    """A request has ended; nothing follows for it. `message` is the sentence to show when `reason` is ERROR."""

    request_id: str
    reason: FinishReason
    tail: str
    """Text still held back at the end (half a character, the start of a stop string that never came)."""
    message: str
    at: float


@dataclass(frozen=True, slots=True)
class Died:
    """The engine thread has ended on an error; every open request has been finished with it."""

    message: str
    at: float


Event = Loading | Ready | Admitted | Prefilled | Round | Notice | Finished | Died
