"""Cache stand-in that shows what a network keeps of a token."""

from __future__ import annotations

from torch import Tensor


class CacheProbe:
    """Cache stand-in that records the shapes of keys and values."""

    is_compileable = False
    length = 1

    def __init__(self) -> None:
        self.shapes: dict[int, tuple[int, int, int, int]] = {}

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        self.shapes[layer_idx] = (key.shape[1], key.shape[3], value.shape[1], value.shape[3])
        return key, value

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002
        return 0
