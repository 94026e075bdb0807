"""From a round's outcome to what the user gets: the reply's own limits, its text, and the `Round` record."""

from __future__ import annotations

from collections.abc import Collection

from specchat.engine.decoding.outcome import Outcome
from specchat.engine.decoding.top_logprobs import unpack
from specchat.engine.events import FinishReason
from specchat.engine.round import Detail, Fate, Proposer, Refused, Round
from specchat.engine.sequence.sequence import SequenceState


def commit(
    row: SequenceState, outcome: Outcome, eos: Collection[int], context: int
) -> tuple[list[int], list[str], FinishReason | None]:
    """Add a round's tokens to the row, up to the first that ends the reply.

    Args:
        row: gains the tokens; its `cached` follows.
        outcome: what the round decided.
        eos: tokens that end a reply.
        context: tokens that fit.

    Returns:
        The tokens added, their text pieces, and why the reply ends here (None if it goes on).
    """
    added: list[int] = []
    pieces: list[str] = []
    reason: FinishReason | None = None
    row.cached += 1 + outcome.accepted
    for token in (*outcome.drafted[: outcome.accepted], outcome.last):
        row.tokens.append(token)
        added.append(token)
        pieces.append("" if token in eos else row.text.add(token))
        reason = _reason(row, token, eos, context)
        if reason:
            break
    row.cached = min(row.cached, len(row.tokens))
    return added, pieces, reason


def record(
    row: SequenceState,
    outcome: Outcome,
    added: list[int],
    pieces: list[str],
    *,
    at: float,
    draft_s: float,
    verify_s: float,
    rest_s: float,
    rows: int,
    plain_s: float,
    proposers: tuple[Proposer, ...],
) -> Round:
    """The immutable record of the round that `commit` has just added; what follows an end inside it is dropped."""
    position = len(row.tokens) - len(added)
    cut = len(added) <= outcome.accepted
    accepted = len(added) if cut else outcome.accepted
    drafted = outcome.drafted[:accepted] if cut else outcome.drafted
    tested = accepted if cut else len(outcome.p)
    if cut:
        fate = None
    elif accepted < tested:
        fate = Fate.CORRECTION
    else:
        fate = Fate.BONUS if drafted else Fate.PLAIN
    return Round(
        request_id=row.request.request_id,
        number=row.rounds,
        position=row.position - len(added),
        drafter=row.drafter,
        gamma=outcome.gamma,
        drafted=tuple(drafted),
        p=tuple(outcome.p[:tested]),
        q=tuple(outcome.q[:tested]),
        u=tuple(outcome.u[:tested]),
        beta=tuple(outcome.beta[:tested]),
        accepted=accepted,
        last=None if cut else outcome.last,
        last_fate=fate,
        pieces=(
            *pieces[:accepted],
            *row.text.alternative(drafted[accepted:], after=row.tokens[position + accepted - 1]),
        ),
        last_piece="" if cut else pieces[-1],
        at=at,
        draft_s=draft_s,
        verify_s=verify_s,
        rest_s=rest_s,
        rows=rows,
        detail=_details(row, outcome, tested, cut, fate),
        refused=tuple(
            tuple(Refused(token, row.text.name(token), *chances) for token, *chances in others)
            for others in outcome.refused[:tested]
        ),
        offered=outcome.offered,
        plain_s=plain_s,
        proposers=proposers,
    )


def _details(row: SequenceState, outcome: Outcome, tested: int, cut: bool, fate: Fate | None) -> tuple[Detail, ...]:
    if not outcome.detail or not row.request.detail:
        return ()
    details = unpack(outcome.detail, tested, fate is Fate.CORRECTION, row.text.name, row.request.detail)
    return details[:tested] if cut else details


def _reason(row: SequenceState, token: int, eos: Collection[int], context: int) -> FinishReason | None:
    if token in eos:
        return FinishReason.EOS
    if row.text.stopped:
        return FinishReason.STOP
    if row.emitted >= row.request.max_tokens:
        return FinishReason.LENGTH
    if len(row.tokens) >= context:
        return FinishReason.CONTEXT
    return None
