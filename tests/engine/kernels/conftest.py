"""Tests of the kernels need them compiled, which needs a C++ compiler."""

from collections.abc import Iterator

import pytest

from specchat.engine.kernels.library import Library, Variant, library, missing


@pytest.fixture(autouse=True)
def kernels() -> Iterator[Library]:
    """The kernels, back on the fastest instruction set afterwards."""
    if missing():
        pytest.skip(str(missing()))
    yield library()
    library().use(None)


def variants() -> list[Variant]:
    """Instruction sets of this processor, without the scalar reference."""
    return [] if missing() else [each for each in library().variants if each is not Variant.SCALAR]
