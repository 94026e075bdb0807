"""Warm-up: kernels choose their ways, are compiled, and are captured, before a round is timed."""

from __future__ import annotations

import torch

from specchat.engine.backends.quantized_runner import QuantizedRunner
from specchat.engine.worker.assembly import Assembly


def warm_up(made: Assembly) -> None:
    """Let the kernels choose their ways, be compiled, and be captured, before the first round is timed.

    Raises:
        torch.OutOfMemoryError: there is not the memory for it.
    """
    for passes in (made.target, *made.draft_runners):
        # One row and several, one token and several: what is compiled for these serves for all.
        for rows in {1, passes.cache.slots if passes.device.type == "cuda" else 1}:
            for length in (5,) if isinstance(passes, QuantizedRunner) else (1, 5):
                tokens = torch.zeros(rows, length, dtype=torch.long, device=passes.device)
                logits = passes.forward(tokens, range(rows), [0] * rows)
                logits.amax().item()
    made.target.capture()
    made.drafters.warm_up()
    if made.target.graph_runner is not None:
        _capture_verdicts(made)


def _capture_verdicts(made: Assembly) -> None:
    """Capture as CUDA graphs the verification of what the drafters can propose."""
    drafters = made.drafters.built.values()
    support = next((each.support for each in drafters if each.support is not None), None)
    token = torch.zeros(1, 1, dtype=torch.long, device=made.target.device)
    logits = made.target.forward(token, [0], [0])
    merged = any(each.profile.names_candidates for each in drafters)
    made.verifier.capture(logits, support if made.target.branches else None, merged=merged)
