"""Instruction sets of the kernels, for tests that compare them with each other."""

from enum import IntFlag

from specchat.engine.kernels.library import Library


class Variant(IntFlag):
    """Instruction sets that the kernels are compiled for."""

    SCALAR = 1
    AVX2 = 2
    AVX512 = 4
    NEON = 8
    AMX = 16


def variants_of(kernels: Library) -> Variant:
    """Instruction sets that this processor can run."""
    return Variant(kernels.c.sk_variants())


def use(kernels: Library, variant: Variant | None) -> None:
    """Select an instruction set for the whole process; None selects the fastest. Results are bit-identical."""
    kernels.c.sk_use(-1 if variant is None else int(variant))
