"""What a user says to a model is readable only by that user: file modes under the umask that most systems have."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from specchat.app.settings.named_files import Presets
from specchat.app.settings.settings import Settings
from specchat.app.settings.settings_file import load_settings, save_settings
from specchat.app.storage.files import write_first_free, write_over
from specchat.app.storage.store import Store
from specchat.engine import TraceWriter, make_folder, make_private


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """022, under which new files are readable by all."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def modes(folder: Path) -> dict[str, int]:
    return {file.name: mode(file) for file in folder.iterdir()}


def test_a_new_database_its_log_and_its_folders(tmp_path: Path) -> None:
    path = tmp_path / "home" / "data" / "specchat.db"
    with Store(path) as store:
        store.create_chat("private")
        assert modes(path.parent) == {"specchat.db": 0o600, "specchat.db-wal": 0o600, "specchat.db-shm": 0o600}
    assert mode(path.parent) == mode(path.parent.parent) == 0o700


def test_a_database_that_all_could_read_is_mended_with_its_log_and_folder(tmp_path: Path) -> None:
    path = tmp_path / "data" / "specchat.db"
    with Store(path) as running:
        running.create_chat("private")
        path.parent.chmod(0o755)
        for file in path.parent.iterdir():
            file.chmod(0o644)
        with Store(path) as store:
            assert [chat.title for chat in store.chats()] == ["private"]
            assert set(modes(path.parent).values()) == {0o600}
            assert mode(path.parent) == 0o700


def test_a_file_that_is_moved_aside_is_mended(tmp_path: Path) -> None:
    path = tmp_path / "data" / "specchat.db"
    path.parent.mkdir()
    path.write_bytes(b"no database, but a user's words")
    Store(path).close()
    assert set(modes(path.parent).values()) == {0o600}


def test_settings_and_presets_new_and_old(tmp_path: Path) -> None:
    file = tmp_path / "config" / "settings.toml"
    save_settings(file, Settings(temperature=0.5), ["temperature"])
    Presets(file.parent / "presets").save("mine", Settings())
    assert mode(file) == mode(file.parent / "presets" / "mine.toml") == 0o600
    assert mode(file.parent) == mode(file.parent / "presets") == 0o700
    file.chmod(0o644)
    file.parent.chmod(0o755)
    assert load_settings(file)[0].temperature == 0.5
    assert (mode(file), mode(file.parent)) == (0o600, 0o700)
    file.chmod(0o644)
    save_settings(file, Settings(temperature=0.6), ["temperature"])
    assert mode(file) == 0o600


def test_exports_pictures_copies_and_traces(tmp_path: Path) -> None:
    picture = write_first_free(tmp_path, ["a.svg"], "<svg/>")
    write_over(tmp_path / "state" / "clipboard.txt", "copied")
    TraceWriter(tmp_path / "t.jsonl").close()
    assert mode(picture) == mode(tmp_path / "state" / "clipboard.txt") == mode(tmp_path / "t.jsonl") == 0o600
    assert mode(tmp_path / "state") == 0o700


def test_folders_that_exist_or_are_shared_stay_as_they_are(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    make_folder(shared)
    make_private(shared)
    make_private(tmp_path / "missing")
    assert mode(shared) == 0o1777
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        make_folder(tmp_path / "file" / "inside")
