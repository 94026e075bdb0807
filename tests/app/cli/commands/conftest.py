"""`specchat ask` on a model of random weights."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.app.cli.commands.command import Done, command


@pytest.fixture
def ask(model: Path) -> Callable[..., Done]:
    """Runs `specchat ask` on that model."""

    def run(*arguments: object, **about: object) -> Done:
        return command("ask", *arguments, "--target", model, "--dtype", "float32", **about)  # type: ignore[arg-type]

    return run
