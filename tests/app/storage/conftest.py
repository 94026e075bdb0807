"""A store in its own file."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from specchat.app.storage.store import Store
from tests.app.storage.helpers import Clock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data" / "specchat.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with Store(path, Clock()) as store:
        yield store
