"""Fixtures of the engine's tests."""

from collections.abc import Iterator

import pytest
import torch

from specchat.engine import Engine
from specchat.engine.kernels.library import Library, library, missing
from tests.engine.kernels.variants import use
from tests.engine.tiny import tiny_engine


@pytest.fixture
def kernels() -> Iterator[Library]:
    """The kernels, which a C++ compiler has to compile; back on the fastest instruction set afterwards."""
    if missing():
        pytest.skip(str(missing()))
    yield library()
    use(library(), None)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """A running engine on a tiny target."""
    with tiny_engine() as running:
        yield running


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """What runs here is tiny: threads that wait for each other cost far more than they save."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
