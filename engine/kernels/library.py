"""The shared library of the kernels, loaded once per process."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Array, c_char_p, c_int32, c_int64, c_void_p
from enum import IntFlag
from functools import lru_cache
from pathlib import Path

import torch

from specchat.engine.errors import EngineError
from specchat.engine.kernels.build import LIBRARY
from specchat.engine.kernels.structures import (
    CBatch,
    CDraw,
    CGrowing,
    CHeadModel,
    CHeadStep,
    CMatrix,
    CModel,
    CRead,
    CRows,
)

_ABI = 6
_NO_MEMORY = "there is not enough memory"
"""SK_NO_MEMORY."""


class KernelError(EngineError):
    """What the kernels cannot do; the message is one sentence."""


class KernelMemoryError(KernelError, torch.OutOfMemoryError):
    """Memory is too short for a call, which says nothing against what was asked."""


class Variant(IntFlag):
    """Instruction sets that the kernels are compiled for."""

    SCALAR = 1
    AVX2 = 2
    AVX512 = 4
    NEON = 8
    AMX = 16


class Library:
    """The functions of api.h, with their types; those that fail raise `KernelError`.

    Args:
        path: the shared library.

    Raises:
        OSError: it cannot be loaded.
        KernelError: it is of another version.
    """

    def __init__(self, path: Path) -> None:
        self._c = c = ctypes.CDLL(str(path))
        for name, result, arguments in (
            ("sk_abi", c_int32, []),
            ("sk_error", c_char_p, []),
            ("sk_variants", c_int32, []),
            ("sk_use", c_int32, [c_int32]),
            ("sk_variant", c_char_p, []),
            ("sk_notice", c_char_p, []),
            ("sk_packed_bytes", c_int64, [c_int32, c_int64, c_int64]),
            ("sk_pack", c_int32, [c_int32, c_int64, c_int64, *[c_void_p] * 6]),
            ("sk_unpack", c_int32, [POINTER(CMatrix), c_void_p, c_int64, c_void_p]),
            ("sk_quantize", None, [c_int32, c_void_p, c_int64, *[c_void_p] * 3]),
            ("sk_pick", c_int32, [POINTER(CMatrix), c_void_p, c_int64, c_void_p]),
            ("sk_linear", c_int32, [POINTER(CMatrix), c_void_p, c_void_p, c_int64, c_void_p, c_int32]),
            ("sk_decoder_new", c_void_p, [POINTER(CModel)]),
            ("sk_decoder_free", None, [c_void_p]),
            ("sk_decoder_attach", c_int32, [c_void_p, c_int32, c_int32, c_void_p, c_void_p]),
            ("sk_decoder_pass", c_int32, [c_void_p, POINTER(CBatch)]),
            ("sk_head_new", c_void_p, [POINTER(CHeadModel)]),
            ("sk_head_free", None, [c_void_p]),
            ("sk_head_attach", c_int32, [c_void_p, c_int32, c_int32, *[c_void_p] * 3]),
            ("sk_head_absorb", c_int32, [c_void_p, c_int64, POINTER(CRead), c_int32]),
            ("sk_head_run", c_int32, [c_void_p, POINTER(CHeadStep)]),
            ("sk_head_grow", c_int32, [c_void_p, POINTER(CGrowing)]),
            ("sk_draw_tokens", c_int32, [POINTER(CDraw), c_int64, c_int64, c_int32]),
            ("sk_judge", c_int32, [POINTER(CRows)]),
        ):
            if not hasattr(c, name):
                raise KernelError(f"{path.name} is not this version's: run `make setup` again")
            function = getattr(c, name)
            function.restype, function.argtypes = result, arguments
        if c.sk_abi() != _ABI:
            raise KernelError(f"{path.name} is of version {c.sk_abi()} and not {_ABI}: run `make setup` again")

    @property
    def variants(self) -> Variant:
        """Those that this processor can run."""
        return Variant(self._c.sk_variants())

    @property
    def variant(self) -> str:
        """The instruction set in use, for people."""
        return str(self._c.sk_variant().decode())

    @property
    def notice(self) -> str | None:
        """Which instructions this processor has that are not used, and why; None where there are none."""
        return self._c.sk_notice().decode() or None

    def use(self, variant: Variant | None) -> None:
        """Compute with this instruction set in the whole process; None for the fastest. The bits are the same."""
        self._check(self._c.sk_use(-1 if variant is None else int(variant)))

    def packed_bytes(self, kind: int, rows: int, columns: int) -> int:
        """Size of a packed matrix."""
        size = int(self._c.sk_packed_bytes(kind, rows, columns))
        self._check(size > 0)
        return size

    def pack(self, kind: int, rows: int, columns: int, *arrays: int | None) -> None:
        """`sk_pack` with addresses."""
        self._check(self._c.sk_pack(kind, rows, columns, *arrays))

    def unpack(self, matrix: CMatrix, rows: int, count: int, out: int) -> None:
        """`sk_unpack` with addresses."""
        self._check(self._c.sk_unpack(ctypes.byref(matrix), rows, count, out))

    def quantize(self, kind: int, values: int, groups: int, codes: int, scale: int, minimum: int | None) -> None:
        """`sk_quantize` with addresses."""
        self._c.sk_quantize(kind, values, groups, codes, scale, minimum)

    def pick(self, matrix: CMatrix, rows: int, count: int, packed: int) -> None:
        """`sk_pick` with addresses."""
        self._check(self._c.sk_pick(ctypes.byref(matrix), rows, count, packed))

    def linear(self, matrix: CMatrix, bias: int | None, x: int, tokens: int, y: int, threads: int) -> None:
        """`sk_linear` with addresses."""
        self._check(self._c.sk_linear(ctypes.byref(matrix), bias, x, tokens, y, threads))

    def new_decoder(self, model: CModel) -> int:
        """`sk_decoder_new`; to be freed by `free_decoder`."""
        decoder = self._c.sk_decoder_new(ctypes.byref(model))
        self._check(decoder)
        return int(decoder)

    def free_decoder(self, decoder: int) -> None:
        """`sk_decoder_free`."""
        self._c.sk_decoder_free(decoder)

    def attach(self, decoder: int, slots: int, columns: int, keys: list[int], values: list[int]) -> None:
        """`sk_decoder_attach` with the addresses of every layer's keys and values."""
        addresses = [(c_void_p * len(each))(*each) for each in (keys, values)]
        self._check(self._c.sk_decoder_attach(decoder, slots, columns, *addresses))

    def run(self, decoder: int, batch: CBatch) -> None:
        """`sk_decoder_pass`."""
        self._check(self._c.sk_decoder_pass(decoder, ctypes.byref(batch)))

    def new_head(self, model: CHeadModel) -> int:
        """`sk_head_new`; to be freed by `free_head`."""
        head = self._c.sk_head_new(ctypes.byref(model))
        self._check(head)
        return int(head)

    def free_head(self, head: int) -> None:
        """`sk_head_free`."""
        self._c.sk_head_free(head)

    def attach_head(self, head: int, slots: int, columns: int, *addresses: int) -> None:
        """`sk_head_attach` with the addresses of states, keys and values."""
        self._check(self._c.sk_head_attach(head, slots, columns, *addresses))

    def absorb(self, head: int, read: Array[CRead], threads: int) -> None:
        """`sk_head_absorb`."""
        self._check(self._c.sk_head_absorb(head, len(read), read, threads))

    def run_head(self, head: int, step: CHeadStep) -> None:
        """`sk_head_run`."""
        self._check(self._c.sk_head_run(head, ctypes.byref(step)))

    def grow(self, head: int, growing: CGrowing) -> None:
        """`sk_head_grow`."""
        self._check(self._c.sk_head_grow(head, ctypes.byref(growing)))

    def draw_tokens(self, draws: Array[CDraw], size: int, threads: int) -> None:
        """`sk_draw_tokens`."""
        self._check(self._c.sk_draw_tokens(draws, len(draws), size, threads))

    def judge(self, rows: CRows) -> None:
        """`sk_judge`."""
        self._check(self._c.sk_judge(ctypes.byref(rows)))

    def _check(self, succeeded: object) -> None:
        if succeeded:
            return
        why = self._c.sk_error().decode()
        if why == _NO_MEMORY:
            raise KernelMemoryError(f"{why} to compute in: run fewer replies at once, or lower --context")
        raise KernelError(why)


@lru_cache(maxsize=1)
def _loaded() -> tuple[Library | None, str | None]:
    if not LIBRARY.exists():
        return None, "the quantised kernels are not built (no C++ compiler at installation): run `make setup` again"
    try:
        return Library(LIBRARY), None
    except KernelError as error:
        return None, f"the quantised kernels cannot be used ({error})"
    except OSError as error:
        return None, f"the quantised kernels cannot be loaded ({error})"


def missing() -> str | None:
    """Why there are no kernels, as one sentence; None where there are."""
    return _loaded()[1]


def library() -> Library:
    """The kernels.

    Raises:
        KernelError: there are none here.
    """
    loaded, why = _loaded()
    if loaded is None:
        raise KernelError(why or "the quantised kernels are missing")
    return loaded
