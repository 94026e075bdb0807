"""One server on a model of random weights that never ends a reply by itself."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.server.served import Served

PAGE = "http://localhost:3000"


@pytest.fixture(scope="module")
def served(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with two slots and room for eight more, a key, and one page that may ask."""
    options = ("--dtype", "float32", "--slots", 2, "--queue", 8, "--cors", PAGE, "--drain", "inf")
    options = (*options, "--allow-host", "A.example")
    with Served("--target", model, *options, home=tmp_path_factory.mktemp("home"), key="secret") as server:
        yield server
        assert server.stop() == 0
        assert server.errors == ""
