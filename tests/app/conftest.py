"""The app as most tests begin with it; pictures and keys must not depend on the terminal that runs the tests."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input, TextArea

from specchat.app.chat import delivery
from specchat.app.ui import pump
from specchat.app.ui.actions import chats
from specchat.app.ui.app import SpecChat
from specchat.app.ui.pump import FrameBudget
from specchat.app.ui.rendering import live_markdown
from specchat.app.ui.screens import calls, writing
from tests.app import quiet
from tests.app.stage import Stage

LONG_S = 3600.0
"""Longer than any test takes."""


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Colours, the defaults of every setting, and nothing of the user's own."""
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path))
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")


@pytest.fixture(autouse=True)
def patient_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames that wait until what they show is stored: the disk may be busy, and a test lets frames follow at once."""
    monkeypatch.setattr(delivery, "STORE_WAIT_S", LONG_S)


@pytest.fixture(autouse=True)
def exact_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pilot that waits for what the app does, however slow the machine is."""
    quiet.wait_exactly(monkeypatch)


@pytest.fixture(autouse=True)
def still_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing on screen depends on how long a test takes.

    No part is drawn more seldom because the machine is slow, notices stay, cursors do not blink, decisions about calls
    count at once, and tokens are not counted and titles not written until a test asks for it.
    """
    monkeypatch.setattr(live_markdown, "processor_time", lambda: 0.0)
    monkeypatch.setattr(pump, "FrameBudget", partial(FrameBudget, spent=lambda: 0.0))
    monkeypatch.setattr(SpecChat, "NOTIFICATION_TIMEOUT", LONG_S)
    monkeypatch.setattr(TextArea, "_toggle_cursor_blink_visible", lambda _: None)
    monkeypatch.setattr(Input, "_toggle_cursor", lambda _: None)
    monkeypatch.setattr(writing, "COUNT_S", LONG_S)
    monkeypatch.setattr(calls, "QUIET_S", 0)
    monkeypatch.setattr(chats, "IDLE_S", LONG_S)


@pytest.fixture(scope="session")
def model(tiny_model: Callable[..., Path]) -> Path:
    """A model of random weights that never ends a reply by itself."""
    return tiny_model(eos_token_id=0)


@pytest.fixture(scope="session")
def served(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server of that model: two slots and room for eight more, a key, one page and one host that may ask."""
    from tests.app.server.served import PAGE, Served

    options = ("--dtype", "float32", "--slots", 2, "--queue", 8, "--cors", PAGE, "--drain", "inf")
    options = (*options, "--allow-host", "A.example")
    with Served("--target", model, *options, home=tmp_path_factory.mktemp("home"), key="secret") as server:
        yield server
        assert server.stop() == 0
        assert server.errors == ""


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """The app on a recorded engine, with no chats yet."""
    return Stage(tmp_path)
