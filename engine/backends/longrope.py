"""Rotary embeddings with two sets of factors, for short texts and for long ("longrope": Ding et al. 2024, "LongRoPE").

transformers takes the set that the largest position of a whole pass asks for, so a row's logits would depend on the
other rows of the batch, and keys in the cache on the text's length when they were written. Here one set serves a whole
engine: the long one where its context is longer than the one the model was first trained on.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from specchat.engine.errors import EngineError

_FIXED = "fixed"
"""Instead of the name "longrope", which makes transformers choose anew in every pass."""
_users: weakref.WeakKeyDictionary[nn.Module, tuple[bool, weakref.WeakSet[Any]]] = weakref.WeakKeyDictionary()
"""For each rotary embedding whether the long set was chosen, and who for."""


def fix_longrope(model: Any, context: int, user: Any) -> int | None:
    """Make a model use one set of factors for all positions below `context`, as long as `user` lives.

    Returns:
        The context of the short set, where the long one was chosen; else None.

    Raises:
        EngineError: another user of the same weights needs the other set.
    """
    longest = None
    for module in model.modules():
        for prefix, parameters in _longrope_parts(module):
            original = int(parameters["original_max_position_embeddings"])
            long = context > original
            chosen, users = _users.get(module, (long, weakref.WeakSet()))
            if chosen is not long and any(other is not user for other in users):
                raise EngineError(
                    f"this model is in use with a context on the other side of {original} tokens, for which it has "
                    f"other factors: choose --context on the same side, or close the other first"
                )
            if long:
                longest = original
            _fix(module, prefix, long, original)
            users.add(user)
            _users[module] = long, users
    return longest


def _longrope_parts(module: nn.Module) -> Iterator[tuple[str, dict[str, Any]]]:
    """The kinds of layers that a rotary embedding has two sets for: prefixes of its buffers, and their parameters."""
    parameters = getattr(getattr(module, "config", None), "rope_parameters", None)
    if not parameters or not hasattr(module, "rope_type"):
        return
    if parameters.get("rope_type") == "longrope":
        yield "", parameters
    for kind, own in parameters.items():
        if isinstance(own, dict) and own.get("rope_type") == "longrope":
            yield f"{kind}_", own


def _fix(module: Any, prefix: str, long: bool, original: int) -> None:
    """Put the set into the buffer that is read, and keep transformers from choosing."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    kind = prefix.removesuffix("_") or None
    frequencies = getattr(module, f"{prefix}inv_freq")
    length = original + 1 if long else original
    chosen, _ = ROPE_INIT_FUNCTIONS["longrope"](module.config, frequencies.device, seq_len=length, layer_type=kind)
    with torch.no_grad():
        frequencies.copy_(chosen)
    if kind is None:
        module.rope_type = _FIXED
    else:
        module.rope_type = {**module.rope_type, kind: _FIXED}
