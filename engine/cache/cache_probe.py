"""Cache stand-in that records the shapes a network stores per token, and how it uses what a cache returns.

A pass whose rows lie scattered over the cache may be handed keys and values of more slots than its rows have: our
attention knows which are whose (`engine.backends.attention`), and nothing else does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from specchat.engine.cache.recurrent_states import Key, StateShape

_OF_NO_SLOT = frozenset(
    [getattr(Tensor, name).__get__ for name in ("device", "dtype", "is_cuda", "ndim", "requires_grad", "shape")]
    + [Tensor.dim, Tensor.is_floating_point, Tensor.size]
)
"""Attributes that may be read without using the values. Code that reads the number of rows uses them."""


class HandedOut(Tensor):
    """Keys or values as a cache hands them out, which know who has looked at them."""

    plain: Tensor
    """The tensor itself."""
    attended: bool
    """Whether they have come to our attention."""
    looked_at: bool
    """Whether anything else has computed with them."""

    @classmethod
    def of(cls, plain: Tensor) -> HandedOut:
        """They have not been read yet."""
        made = plain.as_subclass(cls)
        made.plain, made.attended, made.looked_at = plain, False, False
        return made

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Compute as for any tensor; what comes out is a plain one."""
        with torch._C.DisableTorchFunctionSubclass():
            if func not in _OF_NO_SLOT:
                for each in tree_leaves((args, kwargs)):
                    if isinstance(each, cls):
                        each.looked_at = True
            return func(*args, **(kwargs or {}))


class CacheProbe:
    """Cache stand-in for a pass over one token, which keeps nothing."""

    is_compileable = False
    length = 1

    def __init__(self) -> None:
        self.shapes: dict[int, tuple[int, int, int, int]] = {}
        """Shapes of keys and values of each layer (see `KVCache`)."""
        self.states: dict[Key, StateShape] = {}
        """Shapes of the states of recurrent layers (see `RecurrentStates`)."""
        self._handed_out: list[HandedOut] = []

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Note their shapes; hand them out as they are."""
        self.shapes[layer_idx] = (key.shape[1], key.shape[3], value.shape[1], value.shape[3])
        keys, values = HandedOut.of(key), HandedOut.of(value)
        self._handed_out += [keys, values]
        return keys, values

    def is_recording_past(self, layer_idx: int) -> bool:  # noqa: ARG002
        """True, as in `StatePass`."""
        return True

    def get_conv_state(self, *_: object, **__: object) -> None:
        """None: nothing has been read."""

    get_recurrent_state = has_previous_state = get_conv_state

    def update_conv_state(self, inputs: Tensor, layer_idx: int, *, conv_kernel_size: int, **_: object) -> Tensor:
        """Note the shape of the last inputs of a convolution."""
        self.states[layer_idx, "conv"] = StateShape((inputs.shape[1], conv_kernel_size), inputs.dtype)
        return inputs

    def update_recurrent_state(self, state: Tensor, layer_idx: int, **_: object) -> Tensor:
        """Note the shape of a state [B, …]."""
        self.states[layer_idx, "recurrent"] = StateShape(tuple(state.shape[1:]), state.dtype)
        return state

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002
        """Tokens before this pass."""
        return 0

    @property
    def attention_alone_reads(self) -> bool:
        """Whether all that was handed out has come to our attention as it was, and nothing else computed with it."""
        return all(each.attended and not each.looked_at for each in self._handed_out)
