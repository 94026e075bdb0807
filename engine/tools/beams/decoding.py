"""Beam search with a target: its passes, with drafts or without. The beams are the same."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from specchat.engine.tools.beams.branch_cache import BranchCache
from specchat.engine.tools.beams.drafting import BeamDrafter
from specchat.engine.tools.beams.node import paths
from specchat.engine.tools.beams.search import BeamSearch


@dataclass(frozen=True, slots=True)
class Passes:
    """What a search took of the target."""

    count: int
    """The one that read the prompt's last token included: as many as steps where nothing was drafted."""
    tokens: int
    """That were read in them."""


@torch.inference_mode()
def decode(
    search: BeamSearch, cache: BranchCache, logits: Tensor, drafter: BeamDrafter | None, on_pass: Callable[[], None]
) -> Passes:
    """Run a search to its end.

    A step needs the target's log-probabilities behind all beams. A pass reads the beams that it has not read, and the
    drafts; then as many steps are taken as all beams have been read for.

    Args:
        search: which has not begun.
        cache: of the target, which has read the prompt.
        logits: [1, V], float32, of what follows the prompt.
        drafter: of what is read ahead; None for plain beam search.
        on_pass: called before each pass.

    Raises:
        EngineError: the target computed something that is not a number.
    """
    count = tokens = 1
    seen = {search.beams[0].node: logits[0]}
    while True:
        while not search.done and all(beam.node in seen for beam in search.beams):
            search.advance(torch.stack([seen[beam.node] for beam in search.beams]).log_softmax(-1))
            if drafter:
                drafter.went_on(search.beams)
        if search.done:
            return Passes(count, tokens)
        on_pass()
        ends = [beam.node for beam in search.beams]
        cache.keep(ends)
        seen = {node: seen[node] for node in ends if node in seen}
        fed = paths([*ends, *(drafter.draft(search.beams, seen, search.left - 1) if drafter else ())], cache)
        started = time.perf_counter()
        logits = cache.feed(fed)
        logits[0, 0].item()  # waits for a GPU
        if drafter:
            drafter.learn(fed, time.perf_counter() - started)
        seen |= zip(fed, logits, strict=True)
        count, tokens = count + 1, tokens + len(fed)
