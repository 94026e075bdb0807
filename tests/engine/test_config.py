"""Default folders on machines that have little installed."""

import sys
from pathlib import Path

import pytest

from specchat.engine import models_folder


def test_models_have_a_folder_where_platformdirs_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPECCHAT_HOME", raising=False)
    monkeypatch.setitem(sys.modules, "platformdirs", None)
    assert models_folder() == Path.home() / ".cache" / "specchat" / "models"
