"""Tests of the kernels need them compiled."""

import pytest

from specchat.engine.kernels.library import Library, library, missing
from tests.engine.kernels.variants import Variant, variants_of


@pytest.fixture(autouse=True)
def _compiled(kernels: Library) -> None:
    """For every test here."""


def variants() -> list[Variant]:
    """Instruction sets of this processor, without the scalar reference."""
    return [] if missing() else [each for each in variants_of(library()) if each is not Variant.SCALAR]
