"""Padding of passes to few widths (tokens per row), because every new shape costs time and memory.

On a GPU it costs a CUDA graph; on a CPU, machine code that oneDNN generates and keeps: for the default model 3 MB and
a third of the time of a pass.
"""

from __future__ import annotations

CAPTURED = (1, 5, 9, 17)
"""Widths of passes that become CUDA graphs: a GPU reads the weights once for 5 tokens as for 1."""
_LONGEST_ROUND = 17


def captured_width(length: int) -> int:
    """Padded width of a pass that becomes a CUDA graph: the next of `CAPTURED`, which the longest round fills."""
    return next(width for width in CAPTURED if width >= length)


def padded_width(length: int) -> int:
    """Padded width of other passes: 1, 5, 9, 13, 17 (5 tokens cost about as much as 1), then multiples of 32."""
    step, first = (4, 1) if length <= _LONGEST_ROUND else (32, 0)
    return first - (first - length) // step * step
