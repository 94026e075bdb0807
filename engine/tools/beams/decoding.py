"""Beam search with a target: its passes, with drafts or without. The beams are the same."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specchat.engine.tools.beams.branch_cache import BranchCache
from specchat.engine.tools.beams.drafting import BeamDrafter
from specchat.engine.tools.beams.guesser import Likely, likeliest
from specchat.engine.tools.beams.node import Node, paths
from specchat.engine.tools.beams.search import BeamSearch


@dataclass(frozen=True, slots=True)
class Passes:
    """What a search took of the target."""

    count: int
    """The one that read the prompt's last token included: as many as steps where nothing was drafted."""
    tokens: int
    """That were read in them."""


@torch.inference_mode()
def decode(search: BeamSearch, cache: BranchCache, logits: Tensor, drafter: BeamDrafter | None) -> Passes:
    """Run a search to its end.

    A step needs the target's log-probabilities behind all beams. A pass reads the beams that it has not read, and the
    drafts; then as many steps are taken as all beams have been read for.

    Args:
        search: which has not begun.
        cache: of the target, which has read the prompt.
        logits: [1, V], float32, of what follows the prompt.
        drafter: of what is read ahead; None for plain beam search.

    Raises:
        EngineError: the target computed something that is not a number.
    """
    passes = tokens = 1
    seen = {search.beams[0].node: logits[0]}
    while True:
        while not search.done and all(beam.node in seen for beam in search.beams):
            search.advance(torch.stack([seen[beam.node] for beam in search.beams]).log_softmax(-1))
        if search.done:
            return Passes(passes, tokens)
        ends = [beam.node for beam in search.beams]
        cache.keep(ends)
        seen = {node: seen[node] for node in ends if node in seen}
        fed = paths([*ends, *(_drafted(search, seen, drafter) if drafter else ())], cache)
        logits = cache.feed(fed)
        seen |= zip(fed, logits, strict=True)
        if drafter:
            drafter.guesser.learn(fed, logits)
        passes, tokens = passes + 1, tokens + len(fed)


def _drafted(search: BeamSearch, seen: dict[Node, Tensor], drafter: BeamDrafter) -> list[Node]:
    """The drafts for the next pass; where the target has read a beam already, its own logits draft the first step."""
    known: dict[Node, Likely] = {}
    if seen:
        known = dict(zip(seen, likeliest(torch.stack([*seen.values()]), drafter.looked_at), strict=True))
    drafter.guesser.keep([beam.node for beam in search.beams])
    return drafter.draft(search.beams, known, search.left - 1)
