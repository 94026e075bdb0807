"""The shared library of the kernels, loaded once per process."""

from __future__ import annotations

import ctypes
from ctypes import c_char_p
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from specchat.engine.errors import EngineError
from specchat.engine.kernels.build import LIBRARY
from specchat.engine.kernels.structures import CONSTANTS, FUNCTIONS


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
