"""A check of what the writer computes by itself: attention, positions and the cache, in its own kernels and graphs.

A network that it does not know in full (another rotary embedding, a bias) would give text and hidden states that look
well and are wrong.
"""

from __future__ import annotations

from typing import Any

import torch

from scripts.train_head.text import Text
from specchat.engine.errors import EngineError

_ROWS = 4
"""Rows that are read again, spread over the text."""
_MOST = 0.5
"""Largest mean difference. With SmolLM2-135M, bfloat16 makes 0.12, and queries read at wrong addresses make 5."""


def check_wave(text: Text, network: Any) -> None:
    """Compare a wave's log-sum-exp with that of the network's own forward pass.

    Args:
        text: as written.
        network: the target's, of transformers.

    Raises:
        EngineError: they differ by more than rounding explains.
    """
    found = difference(text, network)
    if not found <= _MOST:  # it may be nan
        raise EngineError(
            f"the log-sum-exp of the written text differs from that of the target's own forward pass by {found:.3g} on "
            f"average, more than the {_MOST} that rounding explains: the writer computes something else than the "
            "target, and nothing was trained"
        )


@torch.no_grad()
def difference(text: Text, network: Any) -> float:
    """Mean absolute difference of the log-sum-exp in the first conversations of a few rows."""
    found = []
    for row in range(0, len(text.tokens), -(-len(text.tokens) // _ROWS)):
        first = text.begin[row] == 0
        scores = network(input_ids=text.tokens[row : row + 1, first], use_cache=False).logits[0]
        found.append((scores.float().logsumexp(-1) - text.log_total[row, first]).abs())
    return torch.cat(found).mean().item()
