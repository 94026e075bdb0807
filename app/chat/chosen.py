"""Rounds whose token was given: the user has put it in the place of what was drawn, or it came with a text."""

from __future__ import annotations

from specchat.engine import Fate, Given, Round

CHOSEN = "chosen"
"""The drafter of such a round."""


def chosen_round(request_id: str, token: Given, position: int, at: float) -> Round:
    """A round that drafted and verified nothing.

    Args:
        request_id: The request that it was given to.
        token: What was given.
        position: Tokens of prompt and reply before it.
        at: On the clock of the records.
    """
    return Round(
        request_id=request_id,
        number=0,
        position=position,
        drafter=CHOSEN,
        gamma=0,
        drafted=(),
        p=(),
        q=(),
        u=(),
        beta=(),
        accepted=0,
        last=token.id,
        last_fate=Fate.PLAIN,
        pieces=(),
        last_piece=token.text,
        at=at,
        draft_s=0.0,
        verify_s=0.0,
        rest_s=0.0,
        rows=1,
    )
