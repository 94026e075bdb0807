"""Tokens per row that passes are padded to, so that a device meets few shapes.

Every shape has its price when it is first met: a CUDA graph on a GPU; on the CPU some three megabytes of machine code,
which oneDNN writes in a third of the time of a pass and keeps.
"""

from __future__ import annotations

ON_A_GPU = (1, 2, 3, 5, 9, 17)
_LONGEST_ROUND = 17


def on_a_gpu(length: int) -> int:
    """The tokens of a static pass over `length` of them."""
    return next(width for width in ON_A_GPU if width >= length)


def on_the_cpu(length: int) -> int:
    """1, 5, 9, 13, 17, where five cost about what one does; then, for prompts, multiples of 32."""
    step, first = (4, 1) if length <= _LONGEST_ROUND else (32, 0)
    return first - (first - length) // step * step
