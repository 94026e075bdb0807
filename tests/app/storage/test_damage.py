"""Files that cannot be read are kept, and places that cannot be written are named."""

import contextlib
import shutil
import sqlite3
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specchat.app.errors import StoreError
from specchat.app.storage import database
from specchat.app.storage.store import Store
from specchat.engine import message_parts
from tests.app.storage.helpers import Clock, child


def keep(path: Path) -> dict[str, bytes]:
    """Contents of the files in the folder, by name."""
    return {file.name: file.read_bytes() for file in path.parent.iterdir()}


@pytest.mark.parametrize(
    "content",
    [b"hello", b"\x00" * 5000, b"SQLite format 3\x00", b"SQLite format 3\x00" + b"\xff" * 8000],
    ids=["short", "zeros", "magic", "header"],
)
def test_what_is_no_database_is_moved_aside(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with Store(path) as store:
        assert store.notice
        assert "specchat.db.broken-1" in store.notice
        assert "\n" not in store.notice
        assert store.chats() == []
        store.create_chat("works")
    assert (path.parent / "specchat.db.broken-1").read_bytes() == content
    with Store(path) as store:
        assert store.notice is None
        assert [chat.title for chat in store.chats()] == ["works"]


def test_moved_files_never_replace_each_other(path: Path) -> None:
    (path.parent / "specchat.db.broken-2-wal").write_bytes(b"of two")
    for content in (b"one", b"three", b"four"):
        path.write_bytes(content)
        Store(path).close()
    files = keep(path)
    assert {n: files[f"specchat.db.broken-{n}"] for n in (1, 3, 4)} == {1: b"one", 3: b"three", 4: b"four"}
    assert files["specchat.db.broken-2-wal"] == b"of two"


@pytest.mark.parametrize("content", [b"broken" * 1000, b""])
def test_its_log_moves_with_a_broken_file(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    Path(f"{path}-wal").write_bytes(b"the log")
    with Store(path) as store:
        assert store.chats() == []
    assert (path.parent / "specchat.db.broken-1-wal").read_bytes() == b"the log"


@pytest.mark.parametrize(
    ("statement", "words"),
    [("PRAGMA user_version = 99", "was written by a newer specchat"), ("PRAGMA application_id = 1", "another program")],
)
def test_a_database_of_another_version_or_program_is_kept_as_it_was(path: Path, statement: str, words: str) -> None:
    Store(path).close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute(statement)
    content = path.read_bytes()
    with Store(path) as store:
        assert words in str(store.notice)
    assert (path.parent / "specchat.db.broken-1").read_bytes() == content


def test_a_folder_in_its_place_is_moved_aside(path: Path) -> None:
    path.mkdir()
    (path / "inside").write_text("kept")
    with Store(path) as store:
        assert store.notice
    assert (path.parent / "specchat.db.broken-1" / "inside").read_text() == "kept"


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with some chats in it."""
    path = tmp_path_factory.mktemp("filled") / "specchat.db"
    with Store(path, Clock()) as store:
        for i in range(20):
            chat = store.create_chat(f"chat {i}")
            reply = store.add_message(chat.id, "assistant", "text " * 100)
            store.append_rounds(reply, message_parts("more"), ["line " * 50] * 10)
    return path


@given(data=st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_file_is_either_read_or_kept(tmp_path: Path, filled: Path, data: st.DataObject) -> None:
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    path = folder / "specchat.db"
    damaged = bytearray(filled.read_bytes())
    if data.draw(st.booleans(), "cut"):
        damaged = damaged[: data.draw(st.integers(1, len(damaged) - 1), "length")]
    for _ in range(data.draw(st.integers(0, 3), "holes")):
        start = data.draw(st.integers(0, len(damaged) - 1), "start")
        hole = data.draw(st.binary(min_size=1, max_size=600), "bytes")[: len(damaged) - start]
        damaged[start : start + len(hole)] = hole
    path.write_bytes(damaged)
    with Store(path) as store:
        for chat in store.chats():
            with contextlib.suppress(StoreError):  # a sentence, never anything else
                store.messages(chat.id)
        if store.notice:
            assert len((folder / "specchat.db.broken-1").read_bytes()) >= 1
            assert store.chats() == []
            store.create_chat("works")
    shutil.rmtree(folder)


def test_a_folder_that_cannot_be_made_is_said_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"^chats are not stored: .*specchat.db"):
        Store(tmp_path / "file" / "specchat.db")


@pytest.mark.parametrize("what", ["file", "unreadable"])
def test_without_permission_the_sentence_names_the_file(what: str) -> None:
    folder = Path(tempfile.mkdtemp(dir="/tmp", prefix="specchat-test-"))
    path = folder / "data" / "specchat.db"
    try:
        folder.chmod(0o755)
        path.parent.mkdir()
        if what == "file":
            Store(path).close()
            path.chmod(0o444)
            path.parent.chmod(0o555)
        else:
            path.write_bytes(b"no database")
            path.chmod(0o000)
            path.parent.chmod(0o777)
        before = path.stat().st_mode
        code = (
            "from specchat.app.errors import StoreError\n"
            "import specchat.app.storage.database\n"
            "if os.getuid() == 0: os.setuid(65534)  # root may write everywhere\n"
            "try:\n    Store(path)\nexcept StoreError as error:\n    print(error)\n"
        )
        done = subprocess.run(child(code, path), capture_output=True, text=True, timeout=120, check=False)
        assert done.stderr == ""
        assert done.stdout.startswith("chats are not stored: ")
        assert done.stdout.count("\n") == 1
        assert str(path) in done.stdout
        assert path.stat().st_mode == before
    finally:
        path.parent.chmod(0o755)
        shutil.rmtree(folder)


def test_damage_behind_what_a_start_checks_is_found_by_the_next(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "CHECKED_BYTES", 0)
    with Store(path, Clock()) as store:
        chat = store.create_chat("large")
        for _ in range(200):
            store.add_message(chat.id, "user", "words " * 200)
        store._file._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = bytearray(path.read_bytes())
    content[len(content) // 2 :] = b"\xff" * (len(content) - len(content) // 2)
    path.write_bytes(content)
    with Store(path) as store:
        assert store.notice is None
        with pytest.raises(StoreError, match="is damaged, restart specchat"):
            store.messages(chat.id)
    with Store(path) as store:
        assert "is damaged" in str(store.notice)
        assert store.chats() == []
    with Store(path) as store:
        assert store.notice is None
