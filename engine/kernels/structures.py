"""ctypes structures of api.h."""

from __future__ import annotations

from ctypes import POINTER, Structure, c_double, c_float, c_int32, c_int64, c_uint64, c_void_p


class CMatrix(Structure):
    """`sk_matrix` of api.h."""

    _fields_ = (
        ("format", c_int32),
        ("streamed", c_int32),
        ("rows", c_int64),
        ("columns", c_int64),
        ("data", c_void_p),
    )


class CLayer(Structure):
    """`sk_layer` of api.h."""

    _fields_ = (
        *((name, CMatrix) for name in ("query", "key", "value", "output", "gate", "up", "down")),
        *((name, c_void_p) for name in ("query_bias", "key_bias", "value_bias", "output_bias")),
        *((name, c_void_p) for name in ("attention_norm", "attention_out_norm", "mlp_norm", "mlp_out_norm")),
        *((name, c_void_p) for name in ("query_norm", "key_norm")),
        ("window", c_int32),
        ("rope", c_int32),
    )


class CRope(Structure):
    """`sk_rope` of api.h."""

    _fields_ = (("cosines", c_void_p), ("sines", c_void_p), ("positions", c_int32), ("pairs", c_int32))


class CModel(Structure):
    """`sk_model` of api.h."""

    _fields_ = (
        *((name, c_int32) for name in ("layer_count", "hidden", "heads", "key_heads", "head_size", "intermediate")),
        *((name, c_int32) for name in ("vocabulary", "activation", "rope_count")),
        *((name, c_float) for name in ("epsilon", "attention_scale", "attention_cap", "logit_cap", "embedding_scale")),
        ("embedding", CMatrix),
        ("output", CMatrix),
        ("final_norm", c_void_p),
        ("layers", POINTER(CLayer)),
        ("ropes", POINTER(CRope)),
    )


class CBatch(Structure):
    """`sk_batch` of api.h."""

    _fields_ = (
        ("tokens", c_int64),
        *((name, c_void_p) for name in ("ids", "entered", "slots", "positions", "columns", "prefixes")),
        *((name, c_void_p) for name in ("ancestor_offsets", "ancestors")),
        ("judged_count", c_int64),
        *((name, c_void_p) for name in ("judged", "logits", "best", "shares")),
        ("best_count", c_int64),
        ("tap_count", c_int64),
        *((name, c_void_p) for name in ("taps", "tapped")),
        ("threads", c_int32),
        ("reserved", c_int32),
    )


class CHeadModel(Structure):
    """`sk_head_model` of api.h."""

    _fields_ = (
        ("layer", CModel),
        *((name, CMatrix) for name in ("fuse", "again", "token")),
        ("tap_count", c_int32),
        ("reserved", c_int32),
    )


class CHeadStep(Structure):
    """`sk_head_step` of api.h."""

    _fields_ = (("batch", CBatch), ("sources", c_void_p))


class CRead(Structure):
    """`sk_read` of api.h."""

    _fields_ = (("slot", c_int32), ("first", c_int32), ("count", c_int64), ("tapped", c_void_p))


class CSampling(Structure):
    """`sk_sampling` of api.h."""

    _fields_ = (
        ("temperature", c_double),
        ("top_p", c_double),
        ("top_k", c_int64),
        ("log_min_p", c_float),
        ("reserved", c_int32),
    )


class CGrowth(Structure):
    """`sk_growth` of api.h."""

    _fields_ = (
        *((name, c_int32) for name in ("slot", "begin", "end", "depth", "line", "repeatable")),
        *((name, c_void_p) for name in ("ids", "passes", "rates")),
        ("step", c_double),
        ("sampling", POINTER(CSampling)),
        ("seed", c_uint64),
        ("number", c_uint64),
        ("q", c_void_p),
        ("drafted", c_void_p),
        ("count", c_int64),
    )


class CGrowing(Structure):
    """`sk_growing` of api.h."""

    _fields_ = (
        ("row_count", c_int64),
        ("rows", POINTER(CGrowth)),
        ("read_count", c_int64),
        ("read", POINTER(CRead)),
        ("known", c_void_p),
        ("edges", c_void_p),
        *((name, c_int32) for name in ("edge_count", "longest", "branches", "stream")),
        ("least", c_double),
        ("hope", c_double),
        ("threads", c_int32),
        ("steps", c_int32),
    )


class CDraw(Structure):
    """`sk_draw` of api.h."""

    _fields_ = (
        ("logits", c_void_p),
        ("sampling", POINTER(CSampling)),
        ("count", c_int64),
        *((name, c_void_p) for name in ("u", "q", "places")),
    )


class CRow(Structure):
    """`sk_row` of api.h."""

    _fields_ = (
        ("logits", c_void_p),
        ("sampling", POINTER(CSampling)),
        ("count", c_int64),
        *((name, c_void_p) for name in ("drafted", "parents", "q")),
        ("by_overlap", c_int32),
        ("u_stride", c_int32),
        ("u", c_void_p),
        ("u_last", c_double),
        *((name, c_void_p) for name in ("path", "p", "q_of", "beta")),
        *((name, c_int32) for name in ("accepted", "judged", "positions", "last")),
    )


class CRows(Structure):
    """`sk_rows` of api.h."""

    _fields_ = (
        ("count", c_int64),
        ("rows", POINTER(CRow)),
        ("vocabulary", c_int64),
        ("support", c_int64),
        ("tokens", c_void_p),
        ("places", c_void_p),
        ("threads", c_int32),
        ("reserved", c_int32),
    )
