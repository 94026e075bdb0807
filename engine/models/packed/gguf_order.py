"""Orders of rows and columns in which llama.cpp's files differ from transformers' networks, as indices to undo them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from specchat.engine.kernels.packed_matrix import GROUP, Format, MatrixArrays

Order = NDArray[np.int64]

_SAME_GROUPS = {
    Format.Q4_SUPER: Format.Q4,
    Format.Q8_SUPER: Format.Q8_MINIMUM,
    **{form: form for form in (Format.Q4, Format.Q8, Format.Q8_MINIMUM)},
}
"""Formats with a scale per 32 columns, to those without an outer scale."""


def split_pairs(heads: int, size: int) -> Order:
    """Order of the rows of queries or keys of a Llama model.

    llama.cpp stores rows that are rotated together next to each other; transformers rotates row d with row d + size / 2
    of a head.
    """
    return np.arange(heads * size).reshape(heads, size // 2, 2).swapaxes(1, 2).ravel()


def grouped_heads(config: Any) -> tuple[dict[str, Order], dict[str, Order]]:
    """Orders of rows and columns in gated delta nets with several value heads per key head.

    llama.cpp stores the first value heads of all key heads, then the second ones; transformers those of each key head.
    """
    keys, values, size = config.linear_num_key_heads, config.linear_num_value_heads, config.linear_value_head_dim
    if keys == values:
        return {}, {}
    heads: Order = np.arange(values).reshape(-1, keys).T.ravel()
    of_values: Order = (heads[:, None] * size + np.arange(size)).ravel()
    before = 2 * keys * config.linear_key_head_dim
    joined: Order = np.concatenate([np.arange(before), before + of_values])
    rows = dict.fromkeys(("in_proj_a.", "in_proj_b.", ".A_log", ".dt_bias"), heads)
    rows |= {"in_proj_z.": of_values, "in_proj_qkv.": joined, ".conv1d.": joined}
    return rows, {"linear_attn.out_proj.": of_values}


def with_columns(arrays: MatrixArrays, columns: Order) -> MatrixArrays | None:
    """A matrix with its columns in another order, and the scale of each group rounded to float16.

    None if columns of a group would be parted.
    """
    if arrays.scale is None:
        return MatrixArrays(arrays.format, arrays.codes[:, columns])
    groups = columns.reshape(-1, GROUP)
    whole = (groups == groups[:, :1] + np.arange(GROUP)).all() and not (groups[:, 0] % GROUP).any()
    if arrays.format not in _SAME_GROUPS or not whole:
        return None
    scale, minimum = (
        None if part is None else part[:, groups[:, 0] // GROUP].astype(np.float16) for part in arrays.group_scales()
    )
    return MatrixArrays(_SAME_GROUPS[arrays.format], arrays.codes[:, columns], scale, minimum)
