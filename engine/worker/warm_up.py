"""Warm-up: select, compile and capture kernels before the first round is timed."""

from __future__ import annotations

import torch

from specchat.engine.backends.quantized_runner import QuantizedRunner
from specchat.engine.drafters.head.drafter import HeadDrafter
from specchat.engine.drafters.merged import MergedDrafter
from specchat.engine.drafters.model_fixed_tree import FixedTreeDrafter
from specchat.engine.worker.assembly import Assembly


def warm_up(made: Assembly) -> None:
    """Select, compile and capture kernels.

    Raises:
        torch.OutOfMemoryError: not enough memory.
    """
    for passes in (made.target, *made.draft_runners):
        # One row and several, one token and several: what is compiled for these serves for all.
        for rows in {1, passes.cache.slots if passes.device.type == "cuda" else 1}:
            for length in (5,) if isinstance(passes, QuantizedRunner) else (1, 5):
                tokens = torch.zeros(rows, length, dtype=torch.long, device=passes.device)
                logits = passes.forward(tokens, range(rows), [0] * rows)
                logits.amax().item()
    if made.target.graph_runner is not None:
        _capture(made)


def _capture(made: Assembly) -> None:
    """Capture CUDA graphs for all shapes that can occur."""
    made.target.capture()
    for drafter in made.drafters.values():
        drafter.capture()
    supports = (each.support for each in made.drafters.values() if isinstance(each, (HeadDrafter, FixedTreeDrafter)))
    support = next(supports, None) if made.target.branches else None
    token = torch.zeros(1, 1, dtype=torch.long, device=made.target.device)
    logits = made.target.forward(token, [0], [0])
    made.verifier.capture(logits, support, merged=MergedDrafter.name in made.drafters)
