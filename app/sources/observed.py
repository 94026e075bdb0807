"""Replies of other servers as records: rounds from what a server says while it answers, or only at the end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from specchat.engine import Fate, Record, Round, Step, Token, Totals

OBSERVED = "observed"
"""The drafter of a round that a server told of: what drafted there is its own affair."""
NO_ID = -1
"""Stands for a token id that the server does not say."""
UNSEEN = {Fate.REJECTED: "✕", Fate.DISCARDED: "·"}
"""Drawn for drafted tokens whose text the server does not say."""


def drawn_text(record: Round, token: Token) -> str:
    """A token's text, or a sign for one that the server only counted."""
    return UNSEEN.get(token.fate, token.text) if record.observed else token.text


def observed_round(
    request_id: str, number: int, position: int, step: Step | None, pieces: Sequence[str], at: float, seconds: float
) -> Round:
    """A round that emitted these pieces.

    Args:
        request_id: the request.
        number: of the round.
        position: tokens of prompt and reply before it.
        step: what was drafted and accepted; None if the server does not say, then `pieces` is one token.
        pieces: text per emitted token. There is one more than was accepted, unless the reply ended within those.
        at: when its last text came.
        seconds: since the text before.
    """
    drafted, accepted = step or Step(0, 0)
    ended = len(pieces) <= accepted
    if ended:  # what was drafted behind the end does not count
        drafted = accepted = len(pieces)
    if step is None:
        fate: Fate | None = Fate.UNKNOWN
    elif ended:
        fate = None
    else:
        fate = Fate.CORRECTION if accepted < drafted else Fate.BONUS if drafted else Fate.PLAIN
    return Round(
        request_id=request_id,
        number=number,
        position=position,
        drafter=OBSERVED,
        gamma=drafted,
        drafted=(NO_ID,) * drafted,
        p=(),
        q=(),
        u=(),
        beta=(),
        accepted=accepted,
        last=None if fate is None else NO_ID,
        last_fate=fate,
        pieces=(*pieces[:accepted], *[""] * (drafted - accepted)),
        last_piece="" if fate is None else "".join(pieces[accepted:]),
        at=at,
        draft_s=0.0,
        verify_s=0.0,
        rest_s=seconds,
        rows=1,
        judged=min(accepted + 1, drafted),
    )


def retold(records: Iterable[Record]) -> list[Record]:
    """Records of any number of replies, with rounds in the place of tokens that a server has told apart at the end."""
    known = list(records)
    told: dict[str, list[Round]] = {}
    for totals in known:
        if isinstance(totals, Totals) and totals.steps is not None:
            own = [r for r in known if isinstance(r, Round) and r.request_id == totals.request_id]
            rounds = told_apart(own, totals.steps) if any(r.last_fate is Fate.UNKNOWN for r in own) else None
            told |= {totals.request_id: rounds} if rounds else {}
    left = dict.fromkeys(told, 0)
    """Tokens that have come since the last round was put in."""
    made: list[Record] = []
    for record in known:
        if not isinstance(record, Round) or record.request_id not in told:
            made.append(record)
            continue
        left[record.request_id] += 1
        rounds = told[record.request_id]
        if left[record.request_id] == len(rounds[0].emitted):
            made.append(rounds.pop(0))
            left[record.request_id] = 0
    return made


def told_apart(rounds: Sequence[Round], steps: Sequence[Step]) -> list[Round] | None:
    """The rounds of a reply whose tokens came with unknown fates, once the server has said what each pass did.

    The first token comes from reading the prompt; each step then emitted what it accepted and one token more, the last
    one perhaps less, as the reply ended there.

    Args:
        rounds: one for each token.
        steps: every pass that tested drafts; empty if nothing was drafted.

    Returns:
        None if the steps do not account for every token: passes without a draft lie between them, and where is not
        said.
    """
    passes = [Step(0, 0), *steps] if steps else [Step(0, 0)] * len(rounds)
    cut = sum(step.accepted + 1 for step in passes) - len(rounds)
    if not passes or not 0 <= cut <= passes[-1].accepted:
        return None
    told: list[Round] = []
    rest = list(rounds)
    for step in passes:
        part, rest = rest[: step.accepted + 1], rest[step.accepted + 1 :]
        pieces, seconds = [record.text for record in part], sum(record.rest_s for record in part)
        first, at = part[0], part[-1].at
        told.append(observed_round(first.request_id, len(told), first.position, step, pieces, at, seconds))
    return told
