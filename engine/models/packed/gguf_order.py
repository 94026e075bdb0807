"""Matrices of a GGUF file with their columns in another order."""

from __future__ import annotations

import numpy as np

from specchat.engine.kernels.packed_matrix import GROUP, Format, MatrixArrays
from specchat.engine.models.family import Order

_SAME_GROUPS = {
    Format.Q4_SUPER: Format.Q4,
    Format.Q8_SUPER: Format.Q8_MINIMUM,
    **{form: form for form in (Format.Q4, Format.Q8, Format.Q8_MINIMUM)},
}
"""Formats with a scale per 32 columns, to formats without an outer scale."""


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
