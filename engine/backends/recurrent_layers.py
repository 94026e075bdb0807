"""Recurrent layers of transformers' modelling code, made to store a state per token (`engine.cache.recurrent_states`).

The modelling code has an operator over many tokens, which gives the last state only, and one over a single token.
Where states are recorded, the first is replaced by the second, token by token; projections, convolutions and all else
of a layer still run over all tokens at once. The operators are the gated delta rule (Yang et al. 2024, "Gated Delta
Networks"), the same with a gate per channel (Kimi Team 2025, "Kimi Linear") and the state space models of Mamba-2 (Dao
and Gu 2024, "Transformers are SSMs") and Mamba (Gu and Dao 2023). Mamba's operator over many tokens ignores the state
before them, so that it is replaced in all passes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from specchat.engine.cache.recurrent_states import stepwise

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
