"""A home of their own for tests of commands, and `specchat ask` on a model of random weights."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.app.cli.commands.command import Done, command


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing of the user's is read or written."""
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(scope="module")
def model(tiny_model: Callable[..., Path]) -> Path:
    """A model that never ends a reply by itself."""
    return tiny_model(eos_token_id=0)


@pytest.fixture
def ask(model: Path) -> Callable[..., Done]:
    """Runs `specchat ask` on that model."""

    def run(*arguments: object, **about: object) -> Done:
        return command("ask", *arguments, "--target", model, "--dtype", "float32", **about)  # type: ignore[arg-type]

    return run
