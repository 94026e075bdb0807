"""Experts of a mixture in transformers' parameters, one for all experts of a layer, and in the matrices of the kernels.

A matrix has the rows of its experts one after the other: `gate_proj` and `up_proj` [experts x size, hidden] and
`down_proj` [experts x hidden, size]; biases likewise. A parameter is `gate_up_proj` [experts, 2 x size, hidden], the
rows of the gate first, or `down_proj` [experts, hidden, size]. Some families (`Family.experts_in_turn`) have the rows
of gate and up in turn, transposed parameters [experts, columns, rows], and biases, `gate_up_proj_bias` [experts, 2 x
size] and `down_proj_bias`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specchat.engine.models.family import Order, Parts
from specchat.engine.models.linear_layers import FUSED

_PARTS = {"gate_proj": ("gate_up_proj", 0, 2), "up_proj": ("gate_up_proj", 1, 2), "down_proj": ("down_proj", 0, 1)}
_BIAS = "_bias"


def is_experts(name: str) -> bool:
    """Whether a parameter or matrix of that name has the experts of a layer."""
    return ".experts." in name


def matrices_of(parameter: str) -> list[str]:
    """Names of the matrices or biases whose rows a parameter consists of."""
    stem, _, last = parameter.rpartition(".")
    suffix = "bias" if last.endswith(_BIAS) else "weight"
    last = last.removesuffix(_BIAS)
    return [f"{stem}.{part}.{suffix}" for part in FUSED.get(last, (last,))]


def parameter_of(matrix: str) -> tuple[str, int, int]:
    """Parameter of a matrix or bias, its number among the matrices that share the parameter, and how many they are."""
    stem, part, suffix = matrix.rsplit(".", 2)
    if part not in _PARTS:
        return matrix, 0, 1
    parameter, number, parts = _PARTS[part]
    return f"{stem}.{parameter}{_BIAS if suffix == 'bias' else ''}", number, parts


def rows_of_part(rows: int, number: int, parts: int, *, in_turn: bool) -> slice:
    """Rows of one of `parts` matrices among the rows of an expert."""
    size = rows // parts
    return slice(number, None, parts) if in_turn else slice(number * size, (number + 1) * size)


def joined(parts: Sequence[Tensor], experts: int, *, in_turn: bool) -> Tensor:
    """A parameter of all experts, from its matrices or biases, in the order of `matrices_of`."""
    each = [part.reshape(experts, -1, *part.shape[1:]) for part in parts]
    rows = torch.stack(each, dim=2).flatten(1, 2) if in_turn else torch.cat(each, dim=1)
    return rows.transpose(1, 2) if in_turn and rows.ndim == 3 else rows


def places_in_matrices(
    shape: torch.Size, parts: int, places: NDArray[np.int64], *, in_turn: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Number of the matrix, and flat index in it, of entries of a parameter by flat index."""
    sizes = list(shape[1:])
    entry: list[NDArray[np.int64]] = list(np.unravel_index(places, shape))
    expert, within = entry[0], entry[1:]
    if in_turn:
        within.reverse()
        sizes.reverse()
    (row, column), (rows, columns) = (*within, np.zeros_like(expert))[:2], (*sizes, 1)[:2]
    size = rows // parts
    part, row = (row % parts, row // parts) if in_turn else (row // size, row % size)
    return part, (expert * size + row) * columns + column


def whole_of(parts: Parts, name: str) -> tuple[str, Order] | None:
    """The weight of the modelling code that has the rows of a packed one, and which; None if it is its own."""
    for whole, rows in parts.items():
        for part in rows:
            if f"{part}." in name:
                return name.replace(part, whole), rows[part]
    return None


def parts_of(parts: Parts, name: str) -> Mapping[str, Order]:
    """The packed weights that a weight of the modelling code consists of, with their rows; empty if it is its own."""
    whole = next((each for each in parts if f"{each}." in name), None)
    return {} if whole is None else {name.replace(whole, part): rows for part, rows in parts[whole].items()}


def joined_rows(values: Sequence[Tensor], rows: Sequence[Order]) -> Tensor:
    """A weight of the modelling code [rows, columns] from its parts, flat or not."""
    each = [part.reshape(len(own), -1) for part, own in zip(values, rows, strict=True)]
    return torch.cat(each)[torch.from_numpy(np.argsort(np.concatenate(rows)))]
