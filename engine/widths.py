"""Tokens per row that passes are padded to, so that a device meets few shapes.

Every shape has its price when it is first met: a CUDA graph on a GPU; on the CPU machine code that oneDNN
writes and keeps, for the default model three megabytes and a third of the time of a pass.
"""

from __future__ import annotations

CAPTURED = (1, 2, 3, 5, 9, 17)
_LONGEST_ROUND = 17


def captured_width(length: int) -> int:
    """Of a pass that becomes a CUDA graph: one of `CAPTURED`, none beyond the last."""
    return next(width for width in CAPTURED if width >= length)


def padded_width(length: int) -> int:
    """Of any other pass: 1, 5, 9, 13, 17, where five cost about what one does; then, for prompts, multiples of 32."""
    step, first = (4, 1) if length <= _LONGEST_ROUND else (32, 0)
    return first - (first - length) // step * step
