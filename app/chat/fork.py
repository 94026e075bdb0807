"""Places in a reply where it can continue with other tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from specchat import engine
from specchat.app.chat.reply import Reply

_PER_TOKEN = ("drafted", "p", "q", "u", "beta", "pieces", "detail", "refused", "thinking")
"""Fields of a round with an entry per drafted token, or per emitted one."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """Tokens that a reply can continue with at a fork."""

    ids: tuple[int, ...]
    text: str
    about: str
    """Their probabilities or origin, in words."""


@dataclass(frozen=True, slots=True)
class TokenFork:
    """A place in a reply where it can continue with other tokens."""

    rounds: tuple[engine.Round, ...]
    """The reply up to the place."""
    taken: int | None
    """The token that follows there in the reply; None at a discarded token."""
    taken_text: str
    drafted: tuple[Alternative, ...]
    """Drafted tokens that did not become part of the reply."""
    likeliest: tuple[engine.Candidate, ...]
    """The target's likeliest tokens; empty where they were not recorded."""

    def alternatives(self, likeliest: Sequence[engine.Candidate]) -> list[Alternative]:
        """The drafted tokens and then the likeliest ones, each once and without the token in the reply."""
        known = {alternative.ids for alternative in self.drafted} | {(self.taken,)}
        others = [Alternative((c.id,), c.text, f"p {c.probability:.3f}") for c in likeliest if (c.id,) not in known]
        return [*self.drafted, *others]


def fork_at(reply: Reply, number: int) -> TokenFork:
    """The fork at a token of a reply.

    Raises:
        IndexError: there is no such token.
    """
    record, token = reply.token(number)
    rounds = tuple(rounds_before(reply, number))
    if record.observed:  # tokens have no ids
        return TokenFork(rounds, None, token.text, (), ())
    if token.fate is engine.Fate.DISCARDED:
        path = slice(record.accepted, token.place + 1)
        draft = Alternative(record.drafted[path], "".join(record.pieces[path]), "the draft up to here")
        return TokenFork(rounds, None, "", (draft,), ())
    place = min(token.place, record.accepted)
    is_last = place == record.accepted
    taken = record.last if is_last else record.drafted[place]
    text = record.last_piece if is_last else record.pieces[place]
    drafted = []
    if is_last and place < record.tested:
        drafted.append(_rejected(record.drafted[place], record.pieces[place], record.p[place], record.q[place]))
    if place < len(record.refused):
        drafted += [_rejected(other.id, other.text, other.p, other.q) for other in record.refused[place]]
    likeliest = record.detail[place].target if place < len(record.detail) else ()
    return TokenFork(rounds, taken, text, tuple(drafted), likeliest)


def rounds_before(reply: Reply, token: int) -> list[engine.Round]:
    """The rounds before a token of a reply; the last of them is cut before it.

    A rejected or discarded token and a correction come after the accepted tokens of their round.
    """
    if token >= reply.tokens:
        return list(reply.rounds)
    index = reply.round_of(token)
    record = reply.rounds[index]
    kept = min(token - reply.starts[index], record.accepted)
    if not kept:
        return reply.rounds[:index]
    parts = {name: getattr(record, name)[:kept] for name in _PER_TOKEN}
    return [*reply.rounds[:index], replace(record, accepted=kept, last=None, last_fate=None, last_piece="", **parts)]


def _rejected(token: int, text: str, p: float, q: float) -> Alternative:
    return Alternative((token,), text, f"rejected · p {p:.3f} · q {q:.3f}")
