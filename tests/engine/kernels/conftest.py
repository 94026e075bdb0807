"""Tests of the kernels need them compiled."""

import pytest

from specchat.engine.kernels.library import Library, Variant, library, missing


@pytest.fixture(autouse=True)
def _compiled(kernels: Library) -> None:
    """For every test here."""


def variants() -> list[Variant]:
    """Instruction sets of this processor, without the scalar reference."""
    return [] if missing() else [each for each in library().variants if each is not Variant.SCALAR]
