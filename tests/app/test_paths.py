"""Folders of the program's files."""

from pathlib import Path

import pytest

from specchat.app import paths
from tests.app.cli.commands.command import command


def test_the_variable_may_be_relative_or_begin_with_a_tilde(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPECCHAT_HOME", "here")
    assert paths.data_folder() == tmp_path / "here" / "data"
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    monkeypatch.setenv("SPECCHAT_HOME", "~/there")
    assert paths.data_folder() == tmp_path / "me" / "there" / "data"


@pytest.mark.parametrize("arguments", [("export",), ("ask", "hi")])
def test_a_tilde_with_an_unknown_user_is_named(monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]) -> None:
    monkeypatch.setenv("SPECCHAT_HOME", "~no-such-user/x")
    assert "SPECCHAT_HOME is ~no-such-user/x, and there is no such user" in command(*arguments).sentence


def test_pictures_and_exports_have_a_folder_of_their_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SPECCHAT_HOME", raising=False)
    monkeypatch.setattr(paths.platformdirs, "user_documents_path", lambda: tmp_path / "Documents")
    assert paths.exports_folder() == paths.data_folder() / "exports"
    (tmp_path / "Documents").mkdir()
    assert paths.exports_folder() == tmp_path / "Documents" / "specchat"
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path / "home"))
    assert paths.exports_folder() == tmp_path / "home" / "exports"
