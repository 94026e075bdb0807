"""ctypes structures of api.h."""

from __future__ import annotations

from ctypes import POINTER, Structure, c_double, c_float, c_int32, c_int64, c_uint64, c_void_p
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

_TYPES: dict[str, Any] = {
    "double": c_double,
    "float": c_float,
    "int32": c_int32,
    "int64": c_int64,
    "uint64": c_uint64,
    "pointer": c_void_p,
}


def _fields(*groups: str | tuple[str, Any]) -> list[tuple[str, Any]]:
    """Fields in order: "type name name …", or a name with a structure or a pointer to one."""
    fields: list[tuple[str, Any]] = []
    for group in groups:
        if isinstance(group, str):
            kind, *names = group.split()
            fields += [(name, _TYPES[kind]) for name in names]
        else:
            fields.append(group)
    return fields


class CMatrix(Structure):
    """`sk_matrix` of api.h."""

    _fields_ = _fields("int32 format streamed", "int64 rows columns", "pointer data")


class CLayer(Structure):
    """`sk_layer` of api.h."""

    _fields_ = _fields(
        *((name, CMatrix) for name in ("query", "key", "value", "output", "gate", "up", "down")),
        "pointer query_bias key_bias value_bias output_bias",
        "pointer attention_norm attention_out_norm mlp_norm mlp_out_norm query_norm key_norm",
        "int32 window rope mixer reserved",
        "pointer convolution convolution_bias",
        ("router", CMatrix),
        "pointer router_bias gate_bias up_bias down_bias sinks",
        "int32 key_heads head_size source",
        "float scale",
        "pointer value_norm",
        ("input_gate", CMatrix),
        ("input_projection", CMatrix),
        "pointer input_norm",
        ("mixer_gate", CMatrix),
        "pointer decay_rate decay_bias delta_norm",
    )


class CRope(Structure):
    """`sk_rope` of api.h."""

    _fields_ = _fields("pointer cosines sines", "int32 positions pairs")


class CModel(Structure):
    """`sk_model` of api.h."""

    _fields_ = _fields(
        "int32 layer_count hidden heads vocabulary activation rope_count taps",
        "float epsilon attention_scale attention_cap logit_cap embedding_scale",
        "int32 experts experts_per_token expert_size normalise_experts",
        ("embedding", CMatrix),
        ("output", CMatrix),
        "pointer final_norm",
        ("layers", POINTER(CLayer)),
        ("ropes", POINTER(CRope)),
        ("inputs_embedding", CMatrix),
        ("inputs_projection", CMatrix),
        "pointer inputs_norm",
        "int32 inputs",
        "float inputs_scale",
        "int32 delta_key_heads delta_value_heads delta_key_size delta_value_size",
        ("clusters", CMatrix),
        "int32 clusters_scored",
    )


class CBatch(Structure):
    """`sk_batch` of api.h."""

    _fields_ = _fields(
        "int64 tokens",
        "pointer ids entered slots positions columns prefixes ancestor_offsets ancestors",
        "int64 judged_count",
        "pointer judged logits best shares",
        "int64 best_count tap_count",
        "pointer taps tapped",
        "int32 threads reserved",
    )


class CHeadModel(Structure):
    """`sk_head_model` of api.h."""

    _fields_ = _fields(
        ("layer", CModel), ("fuse", CMatrix), ("again", CMatrix), ("token", CMatrix), "int32 tap_count reserved"
    )


class CHeadStep(Structure):
    """`sk_head_step` of api.h."""

    _fields_ = _fields(("batch", CBatch), "pointer sources")


class CCache(Structure):
    """`sk_cache` of api.h."""

    _fields_ = _fields("pointer keys values key_scales value_scales")

    @classmethod
    def of(cls, *tensors: Tensor) -> CCache:
        """Keys, values, and their scales if they have some, which the caller keeps alive."""
        return cls(*(tensor.data_ptr() for tensor in tensors))


class CTables(Structure):
    """`sk_tables` of api.h."""

    _fields_ = _fields("pointer blocks", "int32 slots width")

    @classmethod
    def of(cls, tables: NDArray[np.int32]) -> CTables:
        """Tables [slots, width], which the caller keeps alive."""
        return cls(tables.ctypes.data, *tables.shape)


class CRead(Structure):
    """`sk_read` of api.h."""

    _fields_ = _fields("int32 slot first", "int64 count", "pointer tapped")


class CSampling(Structure):
    """`sk_sampling` of api.h."""

    _fields_ = _fields(
        "double temperature top_p",
        "int64 top_k",
        "double xtc_probability xtc_threshold",
        "float log_min_p",
        "int32 reserved",
    )


class CPenalties(Structure):
    """`sk_penalties` of api.h."""

    _fields_ = _fields(
        "pointer text",
        "int64 count prompt",
        "pointer biased bias",
        "int64 bias_count",
        "float repetition presence frequency",
        "int32 reserved",
        "double dry_multiplier dry_base",
        "int64 dry_allowed dry_last",
        "pointer breaks",
    )


class CGrowth(Structure):
    """`sk_growth` of api.h."""

    _fields_ = _fields(
        "int32 slot begin end depth line repeatable",
        "pointer ids passes rates",
        "double step",
        ("sampling", POINTER(CSampling)),
        ("penalties", POINTER(CPenalties)),
        "uint64 seed number",
        "pointer q drafted",
        "int64 count",
    )


class CGrowing(Structure):
    """`sk_growing` of api.h."""

    _fields_ = _fields(
        "int64 row_count",
        ("rows", POINTER(CGrowth)),
        "int64 read_count",
        ("read", POINTER(CRead)),
        "pointer known places",
        "int64 vocabulary",
        "pointer edges",
        "int32 edge_count longest branches stream",
        "double least hope",
        "int32 threads steps",
    )


class CDraw(Structure):
    """`sk_draw` of api.h."""

    _fields_ = _fields(
        "pointer logits",
        ("sampling", POINTER(CSampling)),
        "int64 count",
        "pointer u q places",
        "uint64 seed",
        "int64 position",
    )


class CRow(Structure):
    """`sk_row` of api.h."""

    _fields_ = _fields(
        "int32 slot start",
        "int64 last_token count",
        "pointer drafted q",
        ("sampling", POINTER(CSampling)),
        ("penalties", POINTER(CPenalties)),
        "uint64 seed number",
        "int32 held accepted tested positions last left",
        "pointer path p q_of beta logits best",
    )


class CRows(Structure):
    """`sk_rows` of api.h."""

    _fields_ = _fields(
        "int64 count",
        ("rows", POINTER(CRow)),
        "int64 most vocabulary support",
        "pointer tokens places",
        "int64 best_count",
        "int32 branches accept_stream last_stream threads",
    )


class CRound(Structure):
    """`sk_round` of api.h."""

    _fields_ = _fields(
        ("rows", CRows),
        ("growing", POINTER(CGrowing)),
        "int64 tap_count",
        "pointer taps tapped",
        "int64 steps",
        "double growing_s seconds",
    )
