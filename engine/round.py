"""The record of one round: drafted tokens, their fates, and times.

Colours, panel, statistics, traces, replay and benchmarks are computed from these records only. They are immutable and
picklable, need neither torch nor a model, and serialise to one JSON line (`engine.trace`). Times are in seconds; `at`
counts from the creation of the engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import compress
from operator import not_
from typing import NamedTuple


class Fate(StrEnum):
    """Fate of one token: the first three apply to drafted tokens, the others to a round's last token."""

    ACCEPTED = "accepted"
    """Drafted, and accepted by the target."""
    REJECTED = "rejected"
    """Drafted, and rejected by the target."""
    DISCARDED = "discarded"
    """Drafted, but not tested: after a rejection, or a further candidate that was not needed."""
    CORRECTION = "correction"
    """Drawn from the residual norm(max(0, p - q)) after a rejection."""
    BONUS = "bonus"
    """Drawn from p after all drafted tokens were accepted."""
    PLAIN = "plain"
    """Drawn from p in a round without a draft."""
    UNKNOWN = "unknown"
    """Token of a server that does not report fates."""


class Token(NamedTuple):
    """One token as displayed. `place` is its index among the round's tokens, in display order."""

    id: int
    text: str
    fate: Fate
    place: int


class TokenScore(NamedTuple):
    """Score of a token of a text, under the target after the tokens before it (temperature 1, nothing filtered)."""

    logprob: float
    """Natural logarithm of its probability."""
    top: tuple[tuple[str, float], ...]
    """Text and log-probability of the most likely tokens."""


class Candidate(NamedTuple):
    """One entry of a top-k list: a token, its text, and its probability."""

    id: int
    """Token id."""
    text: str
    """Its text on its own."""
    probability: float
    """Its probability in the list's distribution."""


class Refused(NamedTuple):
    """A further token of a tree that was tested at a position and rejected."""

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


class Call(NamedTuple):
    """A call of a tool by the model."""

    id: str
    """Names the call, so that its result can refer to it."""
    name: str
    """Name of the tool."""
    arguments: str
    """Its arguments, a JSON object."""


class Proposer(NamedTuple):
    """One of the drafts that a drafter combines in a round: of a draft model, or of another drafter."""

    name: str
    """Name of the draft model or drafter."""
    length: int
    """Length of its draft."""
    shared: int
    """Length of the prefix that its draft shares with `Round.drafted`, before truncation at the reply's end."""

    def judged(self, accepted: int, tested: int) -> tuple[int, int]:
        """How many of its tokens were tested, and accepted, where `accepted` of `tested` drafted ones were."""
        right = min(self.shared, accepted)
        return min(right + 1, self.length, tested), right


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
    """Probability of the position's own token (the tested one, or `Round.last`) in the distribution of `target`; None
    in traces older than version 3."""


@dataclass(frozen=True, slots=True)
class Round:
    """One draft and one verification for one request (Leviathan et al. 2023, Algorithm 1).

    `drafted[:accepted]` and then `last` were emitted. If `accepted < len(p)`, `drafted[accepted]` was rejected and
    the tokens after it were discarded. `p`, `q`, `u` and `beta` hold one value per *tested* token: p(x) and q(x) under
    the standardised distributions, the uniform draw u (accepted iff u·q < p; with a lenience l, iff u·l·q < p), and
    β = Σ min(p, q).

    A tree (`engine.decoding.tree`) has several tokens at one position, which are tested one after the other. Then
    `drafted` contains the accepted one, or the first if none was accepted, and after a rejection the first choices of
    that branch. Other rejected tokens are in `refused`; p and q are the residuals' at the time of each test,
    and β is the probability that one of the tokens at the position is accepted.

    A round of another server is `observed`. Then `p`, `q`, `u` and `beta` are empty, token ids are -1, pieces of
    rejected and discarded tokens are empty, the whole time since the previous text is in `rest_s`, and `last_fate` is
    UNKNOWN if the server does not report it.
    """

    request_id: str
    """The request."""
    number: int
    """0 for the request's first round."""
    position: int
    """Tokens of prompt and reply before this round."""
    drafter: str
    """Name of the drafter."""
    gamma: int
    """Requested draft length, of a tree its depth; of a chain fewer tokens may have been drafted."""
    drafted: tuple[int, ...]
    """Drafted token ids."""
    p: tuple[float, ...]
    """p(x) of each tested token."""
    q: tuple[float, ...]
    """q(x) of each tested token."""
    u: tuple[float, ...]
    """The uniform draw of each tested token. Of a token that was not drawn from q, which is accepted if the target
    draws it, a uniform number with the same verdict."""
    beta: tuple[float, ...]
    """β = Σ min(p, q) at each tested position."""
    accepted: int
    """Number of accepted tokens."""
    last: int | None
    """The correction, bonus or plain token; None if the request ended inside the accepted tokens."""
    last_fate: Fate | None
    """Fate of `last`; None without one."""
    pieces: tuple[str, ...]
    """Text per drafted token. Over a request, the emitted pieces and `Finished.tail` concatenate to the reply, without
    marks around its thinking."""
    last_piece: str
    """Text of `last`."""
    at: float
    """Time of the round's end, when its tokens were committed. Its record is made and emitted during the next round."""
    draft_s: float
    """Time of drafting."""
    verify_s: float
    """Time of the target's pass and of acceptance."""
    rest_s: float
    """Time of the round outside draft and verification, up to `at`. Making records is not part of it: it slows the
    next round down where both share a core."""
    rows: int
    """B: number of requests in this round; the three times are of the whole batch."""
    detail: tuple[Detail, ...] = ()
    """One per tested token, then one for `last`; empty unless requested."""
    refused: tuple[tuple[Refused, ...], ...] = ()
    """Per tested token, the other tokens rejected at its position, in order; empty for a chain."""
    offered: int = 0
    """Number of tokens of the tree; 0 for a chain."""
    plain_s: float = 0.0
    """Time of a plain pass of the same batch just before this round; 0 if none was measured."""
    judged: int | None = None
    """Number of tested tokens of an observed round; else None, and `p` has one value per tested token."""
    proposers: tuple[Proposer, ...] = ()
    """Drafts that a combining drafter used in this round; empty for other drafters, and then not in the trace."""
    thinking: tuple[bool, ...] = ()
    """Whether each emitted token is part of the model's thinking, marks included; empty if none is, and then not in the
    trace."""
    context: int = 0
    """Tokens of all rows of the batch before this round; 0 if unknown, as in traces older than version 5."""
    calls: tuple[Call, ...] = ()
    """Calls of tools that this round completed, which are no part of its text; if empty, not in the trace."""
    call_parts: tuple[Call, ...] = ()
    """Parts of calls that this round wrote, before the calls are complete: `arguments` is the text that a part adds to
    a call's. If empty, not in the trace."""

    @property
    def mean_context(self) -> float:
        """Tokens before this round per row of the batch."""
        return self.context / self.rows if self.context else self.position

    @property
    def observed(self) -> bool:
        """Whether the round was reported by another server."""
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
    def rejected(self) -> int:
        """Number of tokens that were tested and rejected, further candidates for a position included."""
        return self.tested - self.accepted + sum(map(len, self.refused))

    @property
    def discarded(self) -> int:
        """Number of drafted tokens that were not tested."""
        return max(self.wasted - self.rejected, 0)

    @property
    def steps(self) -> int:
        """Number of drafted positions."""
        return self.gamma if self.offered else len(self.drafted)

    def proposed_by(self, token: Token) -> tuple[str, ...]:
        """Names of the combined drafts that contain a token of this round."""
        if token.place >= len(self.drafted):
            return ()
        return tuple(each.name for each in self.proposers if token.place < each.shared)

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
        return "".join(self.said)

    @property
    def said(self) -> tuple[str, ...]:
        """Text of each emitted token, in order."""
        head = self.pieces[: self.accepted]
        return head if self.last is None else (*head, self.last_piece)

    @property
    def thought(self) -> str:
        """Text this round added to the thinking."""
        return "".join(compress(self.said, self.thinking))

    @property
    def answer(self) -> str:
        """Text this round added to the answer."""
        return "".join(compress(self.said, map(not_, self.thinking))) if self.thinking else self.text

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
