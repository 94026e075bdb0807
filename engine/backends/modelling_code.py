"""Changes to transformers' modelling code: recurrent layers store a state per token, longrope has one set of factors.

The modelling code has an operator over many tokens, which gives the last state only, and one over a single token.
Where states are recorded (`engine.cache.recurrent_states`), the first is replaced by the second, token by token;
projections, convolutions and all else of a layer still run over all tokens at once. The operators are the gated delta
rule (Yang et al. 2024, "Gated Delta Networks"), the same with a gate per channel (Kimi Team 2025, "Kimi Linear") and
the state space models of Mamba-2 (Dao and Gu 2024, "Transformers are SSMs") and Mamba (Gu and Dao 2023). Mamba's
operator over many tokens ignores the state before them, so that it is replaced in all passes.

Rotary embeddings may have two sets of factors, for short texts and for long ("longrope": Ding et al. 2024, "LongRoPE").
transformers takes the set that the largest position of a whole pass asks for, so a row's logits would depend on the
other rows of the batch, and keys in the cache on the text's length when they were written. Here one set serves a whole
engine: the long one where its context is longer than the one the model was first trained on.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from specchat.engine.cache.recurrent_states import stepwise
from specchat.engine.errors import EngineError

Operator = Callable[..., tuple[Tensor, Tensor]]


def record_states(network: nn.Module, layers: set[int]) -> set[int]:
    """Make the recurrent layers of a network record their states.

    Args:
        network: of transformers.
        layers: indices of its layers with a recurrent state.

    Returns:
        The layers whose operator is not known, so that drafted tokens cannot be taken back.
    """
    known = set()
    for part in network.modules():
        module = sys.modules[type(part).__module__]
        index = getattr(part, "layer_idx", None)
        if index not in layers:
            continue
        if any(name.endswith("A_log") for name, _ in part.named_parameters()) and _made_stepwise(module):
            known.add(index)
    return layers - known


def _made_stepwise(module: ModuleType) -> bool:
    """Replace the operators of a file of modelling code; whether it has any."""
    found = False
    for name, single, step, options in _OPERATORS:
        whole = getattr(module, name, None)
        if whole is None or not hasattr(module, single):
            continue
        found = True
        if not hasattr(whole, "whole"):
            setattr(module, name, stepwise(whole, partial(step, getattr(module, single)), **options))
    return found


def _delta_step(
    single: Operator,
    t: int,
    state: Tensor | None,
    *qkv: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """The gated delta rule for token t: queries, keys and values [B, T, heads, size], gates g and β [B, T, heads], or g
    [B, T, heads, size]."""
    now = slice(t, t + 1)
    before = initial_state if state is None else state
    parts = [each[:, now] for each in qkv]
    return single(*parts, g=g[:, now], beta=beta[:, now], initial_state=before, **options)


def _scan_step(
    single: Callable[..., Tensor],
    t: int,
    state: Tensor | None,
    inputs: Tensor,
    dt: Tensor,
    decay: Tensor,
    enter: Tensor,
    leave: Tensor,
    *,
    initial_states: Tensor,
    D: Tensor,  # noqa: N803 the modelling code's name
    dt_bias: Tensor,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """The state space model for token t: inputs [B, T, heads, size], dt [B, T, heads], B and C [B, T, groups, n]."""
    heads, size = inputs.shape[2:]
    after = (initial_states if state is None else state).clone()  # overwritten
    spread = after.shape[-1]
    output = single(
        after,
        inputs[:, t],
        dt[:, t, :, None].expand(-1, -1, size),
        decay[:, None, None].expand(-1, size, spread),
        enter[:, t],
        leave[:, t],
        D[:, None].expand(-1, size),
        z=None,
        dt_bias=dt_bias[:, None].expand(-1, size),
        dt_softplus=True,
    )
    return output.view(-1, 1, heads, size), after


def _channels_step(
    single: Callable[..., Tensor],
    t: int,
    state: Tensor | None,
    inputs: Tensor,
    dt: Tensor,
    decay: Tensor,
    enter: Tensor,
    leave: Tensor,
    *,
    D: Tensor,  # noqa: N803 the modelling code's name
    z: Tensor,
    delta_bias: Tensor,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """The state space model of Mamba for token t: inputs, dt and gates z [B, channels, T], B and C [B, n, T]."""
    assert state is not None
    after = state.clone()  # overwritten
    now = [each[..., t] for each in (inputs, dt, enter, leave, z)]
    output = single(after, *now[:2], decay, *now[2:4], D, z=now[4], dt_bias=delta_bias, dt_softplus=True)
    return output[..., None], after


_OPERATORS: tuple[tuple[str, str, Operator, dict[str, Any]], ...] = (
    ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule", _delta_step, {}),
    ("chunk_kimi_delta_attention", "recurrent_kimi_delta_attention", _delta_step, {}),
    ("mamba2_chunk_scan", "mamba2_selective_state_update", _scan_step, {}),
    ("mamba_selective_scan", "mamba_selective_state_update", _channels_step, {"dimension": 2, "starts_anew": True}),
)
"""Names of an operator over many tokens and of the one over a single token, how the second is called for each, and
options of `stepwise`."""


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
