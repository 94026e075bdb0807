"""What a search for beams refuses, before anything is loaded."""

from __future__ import annotations

from specchat.engine.drafters.draft_model import CHAINS
from specchat.engine.drafters.none import NoDrafter
from specchat.engine.errors import EngineError
from specchat.engine.request import AUTO, Request

FEWEST, MOST = 2, 16
"""Beams."""
DRAFTERS = (AUTO, NoDrafter.name, CHAINS)
"""Drafters that can draft for each beam; auto is the draft model if one is given, else none."""


def check_request(request: Request, beams: int, draft: str | None) -> None:
    """Refuse what beams cannot be searched with.

    Args:
        request: the question.
        beams: N.
        draft: the draft model that is named, if one is.

    Raises:
        EngineError: there is such a thing.
    """
    sampling = request.sampling
    if not FEWEST <= beams <= MOST:
        raise EngineError(f"beams is {beams}: it must be from {FEWEST} to {MOST}")
    if sampling.temperature > 0:
        raise EngineError(
            f"beams are the likeliest texts, and temperature {sampling.temperature:g} draws texts by chance: set it to "
            "0, or leave beams out"
        )
    if sampling.adjusts:
        raise EngineError("beams have the target's own probabilities: leave penalties and logit biases out")
    if not sampling.lossless:
        raise EngineError("beams are exact: leave lenience out")
    if request.stop:
        raise EngineError("beams end where the model ends them: leave stop strings out, or lower max-tokens")
    if request.drafter not in DRAFTERS:
        raise EngineError(
            f"the drafter {request.drafter} cannot draft for each beam: choose one of {', '.join(DRAFTERS)}"
        )
    if request.drafter == CHAINS and draft is None:
        raise EngineError("drafter model needs a draft model: name one with --draft")
    request.check_prompt()


def drafter_of(request: Request, draft: str | None) -> str:
    """The name of the drafter that a request gets."""
    if request.gamma == 0:
        return NoDrafter.name
    if request.drafter == AUTO:
        return NoDrafter.name if draft is None else CHAINS
    return request.drafter
