"""What is recorded about one token, in words: its fate and why, and the probabilities of the candidates."""

from specchat.app.chat.reply import CHOSEN, Reply
from specchat.app.ui.rendering.figures import FATES, UNTOLD, one_line
from specchat.engine import Candidate, Detail, Fate, Round, Token

TOP = 8
"""Candidates in a list."""
WHOLE = 0.9999
"""A list with at least this sum is the whole distribution: tokens that are not in it have probability 0."""


def shown(text: str) -> str:
    """A token's text with signs for invisible characters."""
    seen = one_line(text)
    stripped = seen.lstrip(" ")
    return "␣" * (len(seen) - len(stripped)) + stripped if stripped else "␣" * len(seen) or "∅"


def number(value: float, digits: int = 3) -> str:
    """0.0512 as .051, and 0.0001 as <.001; 0 and 1 are exact."""
    if value in (0, 1):
        return f"{value:.0f}"
    if 0 < value < 0.5 * 10**-digits:
        return f"<.{'1'.rjust(digits, '0')}"
    return f"{value:.{digits}f}".removeprefix("0")


def chance_of(p: float, q: float) -> float:
    """min(1, p/q)."""
    return 1.0 if p >= q else p / q


def fate_verdict(record: Round, token: Token) -> str:
    """The fate of a token and why, in words."""
    i = token.place
    if record.drafter == CHOSEN:
        return "chosen by you: the reply continues from here; not counted in any figure"
    if record.observed:
        return UNTOLD if token.fate is Fate.UNKNOWN else f"{FATES[token.fate]}; the server reports no p, q or u"
    match token.fate:
        case Fate.ACCEPTED | Fate.REJECTED:
            p, q, u = record.p[i], record.q[i], record.u[i]
            below = u * q < p
            if token.fate is Fate.ACCEPTED and not below:
                return f"accepted by lenience: u {number(u)} is not below min(1, p/q) = {number(chance_of(p, q))}"
            sign, word = ("<", "accepted") if below else ("≥", "rejected")
            return f"u {number(u)} {sign} {number(chance_of(p, q))} = min(1, p/q): {word} by the target"
        case Fate.DISCARDED:
            return "drafted, not tested: it has no p and no u"
        case Fate.CORRECTION:
            rejected = shown(record.pieces[record.accepted])
            return f"drawn from the residual instead of “{rejected}”"
        case Fate.BONUS:
            return "every drafted token was accepted: one more, drawn from p"
        case Fate.PLAIN:
            return "nothing was drafted: drawn from p"
        case Fate.UNKNOWN:
            return UNTOLD


def detail_of(record: Round, token: Token) -> Detail | None:
    """The top-k of a token's position, if it was recorded."""
    if token.place < record.tested:
        return record.detail[token.place] if record.detail else None
    return record.detail[-1] if record.detail and token.place == len(record.drafted) else None


def residual_of(record: Round, token: Token) -> tuple[Candidate, ...]:
    """The distribution of the correction, for the correction and the rejected token."""
    concerned = token.fate in (Fate.REJECTED, Fate.CORRECTION) and record.last is not None
    return record.detail[-1].residual if concerned and record.detail else ()


def why_missing(reply: Reply, token: Token, *, replaying: bool) -> str:
    if reply.figures.metrics.observed:
        return "not reported by the server: only specchat's own engine gives p and q"
    if token.fate is Fate.DISCARDED:
        return "not tested: the target computed no probabilities for it"
    if replaying:
        return "not recorded in this trace"
    if reply.running:
        return (
            "not recorded for this round: rounds from now on are, as long as the inspector is open; earlier ones are "
            "computed when the reply has ended"
        )
    return "being computed"


def listed_together(detail: Detail) -> list[Candidate]:
    """Candidates of both lists: the target's likeliest, then candidates of the drafter alone."""
    listed = {candidate.id for candidate in detail.target}
    others = [candidate for candidate in detail.draft if candidate.id not in listed]
    room = max(TOP - min(len(others), TOP // 3), 1)
    return [*detail.target[:room], *others[: TOP - min(room, len(detail.target))]]


def is_greedy(reply: Reply) -> bool:
    """Whether every p so far is one-hot."""
    return all(p in (0, 1) for record in reply.rounds for p in record.p)


def probability_of(token: int, listed: tuple[Candidate, ...]) -> float | None:
    """Its probability in a top-k list; None where it is not listed and the list is not the whole distribution."""
    known = {candidate.id: candidate.probability for candidate in listed}
    return known.get(token, 0.0 if sum(known.values()) > WHOLE else None)
