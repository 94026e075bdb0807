"""Steps as CUDA graphs and fused kernels: at one token per row, starting kernels would take longer than running them.

On a CPU everything runs as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def compiled(function: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """A function as fused kernels on a GPU."""
    return torch.compile(function, dynamic=False) if device.type == "cuda" else function


def captured(step: Callable[[], None], state: Sequence[Tensor]) -> Callable[[], None]:
    """A step as a CUDA graph, captured after two runs.

    Args:
        step: reads and writes the same tensors at each call.
        state: tensors that get their values back after the two runs; not empty.
    """
    if state[0].device.type != "cuda":
        return step
    saved = [tensor.clone() for tensor in state]
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # which compile and allocate, as a capture must not
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for tensor, before in zip(state, saved, strict=True):
        tensor.copy_(before)
    return graph.replay


def synchronize() -> None:
    """Wait for the GPU, if any."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
