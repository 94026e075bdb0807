"""Weights of the modelling code whose rows are several weights of the packed decoder (`Family.parts`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from specchat.engine.models.family import Order, Parts


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
