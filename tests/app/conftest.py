"""The app as most tests begin with it; pictures and keys must not depend on the terminal that runs the tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from specchat.app.chat import record_queue
from tests.app.stage import Stage


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Colours, the defaults of every setting, and nothing of the user's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")


@pytest.fixture(autouse=True)
def patient_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames that wait longer for the disk: it may be busy, and a test lets frames follow each other at once."""
    monkeypatch.setattr(record_queue, "STORE_WAIT_S", 0.1)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """The app on a recorded engine, with no chats yet."""
    return Stage(tmp_path)
