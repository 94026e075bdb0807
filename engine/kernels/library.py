"""The shared library of the kernels, loaded once per process, and its ctypes structures and functions.

Structures and functions are read from api.h: a change there needs none here.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from ctypes import POINTER, Structure, _Pointer, c_char_p, c_void_p, pointer
from functools import lru_cache
from math import inf, log
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specchat.engine.errors import EngineError
from specchat.engine.kernels.build import LIBRARY, SOURCE
from specchat.engine.settings import COLDEST, Sampling

_HEADER = re.sub("//.*", "", (SOURCE / "api.h").read_text(encoding="utf-8"))
_BODIES = {before or after: body for before, body, after in re.findall(r"struct (\w*) ?{([^}]*)} ?(\w*);", _HEADER)}
"""Declarations of the fields of each structure, by name."""
_TYPES: dict[str, Any] = {
    **{
        name: getattr(ctypes, f"c_{name.removesuffix('_t')}")
        for name in ("double", "float", "int32_t", "int64_t", "uint32_t", "uint64_t")
    },
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


class _HeaderStructure(Structure):
    """Base of the structures: each has the fields of the one of api.h with its name, `CHeadStep` of `sk_head_step`."""


class CMatrix(_HeaderStructure):
    """A packed weight."""


class CLayer(_HeaderStructure):
    """Weights of a layer."""


class CRope(_HeaderStructure):
    """A rotary table."""


class CModel(_HeaderStructure):
    """Weights of a decoder."""


class CBatch(_HeaderStructure):
    """A pass."""


class CHeadModel(_HeaderStructure):
    """Weights of a draft head."""


class CBlockModel(_HeaderStructure):
    """Weights of a block drafter."""


class CHeadStep(_HeaderStructure):
    """A step of a draft head."""


class CCache(_HeaderStructure):
    """Keys and values of a layer."""

    @classmethod
    def of(cls, *tensors: Tensor) -> CCache:
        """Keys, values, and their scales if they have some, which the caller keeps alive."""
        return cls(*(tensor.data_ptr() for tensor in tensors))


class CTables(_HeaderStructure):
    """Block tables of a cache."""

    @classmethod
    def of(cls, tables: NDArray[np.int32]) -> CTables:
        """Tables [slots, width], which the caller keeps alive."""
        return cls(tables.ctypes.data, *tables.shape)


class CRead(_HeaderStructure):
    """Hidden states of the target that a draft head reads."""


class CSampling(_HeaderStructure):
    """Settings of a sampled row."""


class CPenalties(_HeaderStructure):
    """Bias and penalties of a row."""


class CGrowth(_HeaderStructure):
    """A draft that grows."""


class CGrowing(_HeaderStructure):
    """Drafts that grow together."""


class CRow(_HeaderStructure):
    """A row of a round."""


class CRows(_HeaderStructure):
    """The rows of a round."""


class CRound(_HeaderStructure):
    """A round."""


for _made in _HeaderStructure.__subclasses__():  # in the order above: a structure comes after those in it
    _name = "sk" + re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", _made.__name__.removeprefix("C"))
    _made._fields_ = [field for each in _BODIES[_name].split(";")[:-1] for field in _declared(each)]
    _TYPES[_name] = _made

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


@lru_cache(maxsize=64)
def c_settings(sampling: Sampling) -> _Pointer[CSampling]:
    """Pointer to `sk_sampling`, kept alive by the cache."""
    return pointer(
        CSampling(
            temperature=max(sampling.temperature, COLDEST),
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            xtc_probability=sampling.xtc_probability if sampling.xtc else 0.0,
            xtc_threshold=sampling.xtc_threshold,
            log_min_p=log(sampling.min_p) if sampling.min_p else -inf,
        )
    )


class KernelError(EngineError):
    """The kernels are missing or refuse their arguments; the message is one sentence."""


class KernelMemoryError(KernelError, torch.OutOfMemoryError):
    """A call ran out of memory; its arguments are valid."""


class Library:
    """The functions of api.h, by ctypes.

    Args:
        path: the shared library.

    Raises:
        OSError: it cannot be loaded.
        KernelError: it is of another version.
    """

    def __init__(self, path: Path) -> None:
        self.c = ctypes.CDLL(str(path))
        """Functions by name. Pointers are passed as addresses; a failure raises `KernelError`."""
        for name, (result, arguments) in FUNCTIONS.items():
            if not hasattr(self.c, name):
                raise KernelError(f"{path.name} is not this version's: run `make setup` again")
            function = getattr(self.c, name)
            function.restype, function.argtypes = result, arguments
            if result not in (None, c_char_p):  # the others cannot fail
                function.errcheck = self._check
        if self.c.sk_abi() != (version := int(CONSTANTS["SK_ABI"])):
            raise KernelError(f"{path.name} is of version {self.c.sk_abi()} and not {version}: run `make setup` again")

    @property
    def variant(self) -> str:
        """Display name of the instruction set in use."""
        return str(self.c.sk_variant().decode())

    @property
    def notice(self) -> str | None:
        """The instructions of this processor that are not used, and why; None if all are used."""
        return self.c.sk_notice().decode() or None

    def _check(self, result: int | None, *_: object) -> int:
        """ctypes' `errcheck`: null and 0 are failures, and so is a negative size."""
        if result is not None and result > 0:
            return result
        reason = self.c.sk_error().decode()
        if f'"{reason}"' == CONSTANTS["SK_NO_MEMORY"]:
            raise KernelMemoryError(f"{reason} to compute in: run fewer replies at once, or lower --context")
        raise KernelError(reason)


@lru_cache(maxsize=1)
def library() -> Library:
    """The loaded kernels.

    Raises:
        KernelError: they are not available.
    """
    if not LIBRARY.exists():
        raise KernelError(
            "the quantised kernels are not built (no C++ compiler at installation): run `make setup` again"
        )
    try:
        return Library(LIBRARY)
    except KernelError as error:
        raise KernelError(f"the quantised kernels cannot be used ({error})") from error
    except OSError as error:
        raise KernelError(f"the quantised kernels cannot be loaded ({error})") from error


@lru_cache(maxsize=1)
def missing() -> str | None:
    """Why the kernels are not available, as one sentence; None if they are."""
    try:
        library()
    except KernelError as error:
        return str(error)
    return None


def require(tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...], what: str) -> None:
    """Check memory that the kernels will read or write.

    Raises:
        KernelError: it has another dtype or shape, or is not contiguous.
    """
    if tensor.dtype is not dtype or tensor.shape != shape or not tensor.is_contiguous():
        kind = str(dtype).removeprefix("torch.")
        raise KernelError(f"{what} must be contiguous {kind} of the shape {list(shape)}")
