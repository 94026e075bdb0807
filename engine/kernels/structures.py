"""ctypes structures and functions of api.h, which are read from it: a change there needs none here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from ctypes import POINTER, Structure, c_char_p, c_double, c_float, c_int32, c_int64, c_uint64, c_void_p
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from specchat.engine.kernels.build import SOURCE

_Made = TypeVar("_Made", bound=type[Structure])
_HEADER = re.sub("//.*", "", (SOURCE / "api.h").read_text(encoding="utf-8"))
_BODIES = {before or after: body for before, body, after in re.findall(r"struct (\w*) ?{([^}]*)} ?(\w*);", _HEADER)}
"""By name of a structure, the declarations of its fields."""
_TYPES: dict[str, Any] = {
    "double": c_double,
    "float": c_float,
    "int32_t": c_int32,
    "int64_t": c_int64,
    "uint64_t": c_uint64,
    "void": None,
}
"""Numbers, and the structures below once they are defined."""


def _type(kind: str, *, points: bool) -> Any:
    """The ctypes type of a C type, or of a pointer to it; only pointers to structures and to text are typed."""
    if not points:
        return _TYPES[kind]
    known = _TYPES.get(kind)
    return POINTER(known) if isinstance(known, type(Structure)) else c_char_p if kind == "char" else c_void_p


def _declared(text: str) -> Iterator[tuple[str, Any]]:
    """Names and types of a declaration, such as `const float *a, *b`."""
    kind, *names = (part for part in re.findall(r"\*|\w+", text) if part != "const")
    for i, name in enumerate(names):
        if name != "*":
            yield name, _type(kind, points=names[i - 1 : i] == ["*"])


def _of_header(name: str) -> Callable[[_Made], _Made]:
    """Decorator that gives a structure the fields of this one of api.h; structures in it are defined before."""

    def decorate(made: _Made) -> _Made:
        made._fields_ = [field for each in _BODIES[name].split(";")[:-1] for field in _declared(each)]
        _TYPES[name] = made
        return made

    return decorate


@_of_header("sk_matrix")
class CMatrix(Structure):
    """A packed weight."""


@_of_header("sk_layer")
class CLayer(Structure):
    """Weights of a layer."""


@_of_header("sk_rope")
class CRope(Structure):
    """A rotary table."""


@_of_header("sk_model")
class CModel(Structure):
    """Weights of a decoder."""


@_of_header("sk_batch")
class CBatch(Structure):
    """A pass."""


@_of_header("sk_head_model")
class CHeadModel(Structure):
    """Weights of a draft head."""


@_of_header("sk_head_step")
class CHeadStep(Structure):
    """A step of a draft head."""


@_of_header("sk_cache")
class CCache(Structure):
    """Keys and values of a layer."""

    @classmethod
    def of(cls, *tensors: Tensor) -> CCache:
        """Keys, values, and their scales if they have some, which the caller keeps alive."""
        return cls(*(tensor.data_ptr() for tensor in tensors))


@_of_header("sk_tables")
class CTables(Structure):
    """Block tables of a cache."""

    @classmethod
    def of(cls, tables: NDArray[np.int32]) -> CTables:
        """Tables [slots, width], which the caller keeps alive."""
        return cls(tables.ctypes.data, *tables.shape)


@_of_header("sk_read")
class CRead(Structure):
    """Hidden states of the target that a draft head reads."""


@_of_header("sk_sampling")
class CSampling(Structure):
    """Settings of a sampled row."""


@_of_header("sk_penalties")
class CPenalties(Structure):
    """Bias and penalties of a row."""


@_of_header("sk_growth")
class CGrowth(Structure):
    """A draft that grows."""


@_of_header("sk_growing")
class CGrowing(Structure):
    """Drafts that grow together."""


@_of_header("sk_draw")
class CDraw(Structure):
    """Tokens to draw."""


@_of_header("sk_row")
class CRow(Structure):
    """A row of a round."""


@_of_header("sk_rows")
class CRows(Structure):
    """The rows of a round."""


@_of_header("sk_round")
class CRound(Structure):
    """A round."""


_FUNCTION = re.compile(r"SK_EXPORT (.*?)\b(sk_\w+)\(([^)]*)\);")
FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    name: (
        next(_declared(f"{result} {name}"))[1],
        [kind for each in arguments.split(",") for _, kind in _declared(each)],
    )
    for result, name, arguments in _FUNCTION.findall(_HEADER)
}
"""Result type and argument types of every function."""
CONSTANTS: dict[str, str] = dict(re.findall(r"#define (SK_\w+) (.+)", _HEADER))
"""Values of macros, as they are written."""
