"""What a reply may go on with in place of one of its tokens: what the draft had there, and the target's likeliest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specchat.app.chat.reply import Reply
from specchat.engine import Candidate, Fate, Round


@dataclass(frozen=True, slots=True)
class Alternative:
    """Tokens that can stand at the place, and what is known of them."""

    ids: tuple[int, ...]
    text: str
    about: str


@dataclass(frozen=True, slots=True)
class TokenFork:
    """A place in a reply where it can take another way."""

    rounds: tuple[Round, ...]
    """The reply up to the place."""
    taken: int | None
    """The token that stands there; None for a place beside the reply (a discarded token's)."""
    taken_text: str
    drafted: tuple[Alternative, ...]
    """What the draft had there and did not become part of the reply."""
    likeliest: tuple[Candidate, ...]
    """The target's likeliest tokens there; empty where they were not recorded."""

    def alternatives(self, likeliest: Sequence[Candidate]) -> list[Alternative]:
        """All of them once each, what was drafted first, without the token that was taken."""
        found = list(self.drafted)
        known = {alternative.ids for alternative in found} | {(self.taken,)}
        others = [candidate for candidate in likeliest if (candidate.id,) not in known]
        return [*found, *(Alternative((c.id,), c.text, f"p {c.probability:.3f}") for c in others)]


def token_fork(reply: Reply, number: int) -> TokenFork:
    """The fork at a token, by the numbers of `Reply.starts`.

    Raises:
        IndexError: there is no such token.
    """
    record, token = reply.token(number)
    rounds = tuple(reply.rounds_up_to(number))
    if record.observed:  # nothing has an id
        return TokenFork(rounds, None, token.text, (), ())
    if token.fate is Fate.DISCARDED:
        way = slice(record.accepted, token.place + 1)
        text = "".join(record.pieces[way])
        return TokenFork(rounds, None, "", (Alternative(record.drafted[way], text, "the draft up to here"),), ())
    place = min(token.place, record.accepted)
    ended = place == record.accepted
    taken = record.last if ended else record.drafted[place]
    text = record.last_piece if ended else record.pieces[place]
    drafted = []
    if ended and place < record.tested:
        known = f"rejected · p {record.p[place]:.3f} · q {record.q[place]:.3f}"
        drafted.append(Alternative((record.drafted[place],), record.pieces[place], known))
    if place < len(record.refused):
        drafted += [
            Alternative((r.id,), r.text, f"rejected · p {r.p:.3f} · q {r.q:.3f}") for r in record.refused[place]
        ]
    likeliest = record.detail[place].target if place < len(record.detail) else ()
    return TokenFork(rounds, taken, text, tuple(drafted), likeliest)
