"""The store, on real files: what is written comes back, whatever happens to the program or the file."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app import database
from app.errors import StoreError
from app.store import Chat, Store

anything = st.text(st.characters())
clean = st.text(st.characters(codec="utf-8"))


class Clock:
    """A clock that moves on by a second with every look."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "specchat.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with Store(path, Clock()) as store:
        yield store


def child(code: str, *arguments: object) -> list[str]:
    """The command line of a Python program that has the store."""
    head = "import os, sys, time\nfrom pathlib import Path\nfrom app.store import Store\npath = Path(sys.argv[1])\n"
    return [sys.executable, "-c", head + code, *map(str, arguments)]


def test_a_new_file_is_empty(store: Store) -> None:
    assert store.chats() == []
    assert store.notice is None


def test_a_reply_is_stored_as_it_streams(store: Store) -> None:
    chat = store.create_chat("Lisbon")
    prompt = store.add_message(chat.id, "user", "What to see?")
    reply = store.add_message(chat.id, "assistant", "")
    store.append_rounds(reply, "The ", ['{"record": "round"}'])
    store.append_rounds(reply, "Alfama", ["b", "c"])
    store.append_rounds(reply, "", [])
    first, second = store.messages(chat.id)
    assert (first.id, first.role, first.content, first.events) == (prompt, "user", "What to see?", ())
    assert (second.id, second.role, second.content) == (reply, "assistant", "The Alfama")
    assert second.events == ('{"record": "round"}', "b", "c")
    assert second.finish_reason is None
    store.finish_message(reply, "eos")
    assert store.messages(chat.id)[1].finish_reason == "eos"


def test_everything_is_there_after_reopening(path: Path) -> None:
    with Store(path, Clock()) as store:
        chat = store.create_chat("Lisbon")
        reply = store.add_message(chat.id, "assistant", "half")
        store.append_rounds(reply, " a sentence", ["line"])
        before = store.chats(), store.messages(chat.id)
    with Store(path) as store:
        assert (store.chats(), store.messages(chat.id)) == before
        assert store.notice is None


def test_the_chat_last_written_in_comes_first(store: Store) -> None:
    one, two, three = (store.create_chat(title) for title in ("one", "two", "three"))
    assert [chat.title for chat in store.chats()] == ["three", "two", "one"]
    store.add_message(one.id, "user", "again")
    assert [chat.title for chat in store.chats()] == ["one", "three", "two"]
    store.rename_chat(two.id, "2")
    assert [chat.title for chat in store.chats()] == ["one", "three", "2"]
    assert store.chats()[1] == Chat(three.id, "three", three.updated_at)


def test_chats_made_at_the_same_moment_come_newest_first(path: Path) -> None:
    with Store(path, lambda: 5.0) as store:
        ids = [store.create_chat().id for _ in range(5)]
        assert [chat.id for chat in store.chats()] == ids[::-1]


def test_deleting_can_be_undone(store: Store, path: Path) -> None:
    chat = store.create_chat("keep me")
    store.add_message(chat.id, "user", "words")
    before = store.chats()
    store.delete_chat(chat.id)
    assert store.chats() == []
    with Store(path) as other:
        other.restore_chat(chat.id)
    assert store.chats() == before
    assert store.messages(chat.id)[0].content == "words"


def test_messages_stay_in_their_chat(store: Store) -> None:
    one, two = store.create_chat(), store.create_chat()
    a, b = store.add_message(one.id, "assistant", "a"), store.add_message(two.id, "assistant", "b")
    store.append_rounds(b, "", ["of b"])
    store.append_rounds(a, "", ["of a"])
    assert [(m.content, m.events) for m in store.messages(one.id)] == [("a", ("of a",))]
    assert [(m.content, m.events) for m in store.messages(two.id)] == [("b", ("of b",))]


def test_unknown_chats_and_messages_are_refused_by_name(store: Store) -> None:
    assert store.messages(7) == []
    for action in (
        lambda: store.rename_chat(7, "x"),
        lambda: store.delete_chat(7),
        lambda: store.restore_chat(7),
        lambda: store.add_message(7, "user", "x"),
    ):
        with pytest.raises(StoreError, match="chat 7 is not in"):
            action()
    with pytest.raises(StoreError, match="message 9 is not in"):
        store.append_rounds(9, "x", ["y"])
    with pytest.raises(StoreError, match="message 9 is not in"):
        store.finish_message(9, "eos")


def test_a_closed_store_says_so(store: Store) -> None:
    store.close()
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.chats()


@given(clean, st.lists(clean, max_size=4), st.lists(clean, max_size=4))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_text_comes_back_character_by_character(store: Store, title: str, pieces: list[str], lines: list[str]) -> None:
    chat = store.create_chat(title)
    reply = store.add_message(chat.id, "assistant", "")
    for piece in pieces:
        store.append_rounds(reply, piece, lines)
    (message,) = store.messages(chat.id)
    assert message.content == "".join(pieces)
    assert message.events == tuple(lines * len(pieces))
    assert store.chats()[0].title == title


@given(anything)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_half_characters_become_replacement_characters(store: Store, text: str) -> None:
    chat = store.create_chat(text)
    store.append_rounds(store.add_message(chat.id, "user", text), text, [text])
    content = store.messages(chat.id)[0].content
    assert "\ufffd" in content or "\ud83d" not in text
    content.encode()


# ---- several threads and several programs


def test_threads_share_a_store(store: Store) -> None:
    chat = store.create_chat()

    def write(name: str) -> None:
        reply = store.add_message(chat.id, "assistant", "")
        for i in range(50):
            store.append_rounds(reply, name, [f"{name}{i}"])

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        store.messages(chat.id)
    messages = store.messages(chat.id)
    assert sorted(message.content for message in messages) == [name * 50 for name in "abcd"]
    assert all(m.events == tuple(f"{m.content[0]}{i}" for i in range(50)) for m in messages)


def test_two_programs_write_at_once(path: Path) -> None:
    code = (
        "store = Store(path)\nchat = store.create_chat(sys.argv[2])\n"
        "reply = store.add_message(chat.id, 'assistant', '')\n"
        "for i in range(150): store.append_rounds(reply, sys.argv[2], [str(i)])\n"
    )
    writers = [subprocess.Popen(child(code, path, name), stderr=subprocess.PIPE) for name in "ab"]
    for writer in writers:
        assert writer.communicate(timeout=60)[1] == b""
    with Store(path) as store:
        assert store.notice is None
        written = {chat.title: store.messages(chat.id)[0] for chat in store.chats()}
    assert {title: message.content for title, message in written.items()} == {"a": "a" * 150, "b": "b" * 150}
    assert all(message.events == tuple(map(str, range(150))) for message in written.values())


def test_programs_that_start_at_once_on_a_new_file_agree(path: Path) -> None:
    code = (
        "time.sleep(max(0, float(sys.argv[2]) - time.time()))\n"
        "store = Store(path)\nprint(store.notice)\nstore.create_chat('x')\n"
    )
    start = time.time() + 1.0
    starters = [
        subprocess.Popen(child(code, path, start), stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(6)
    ]
    for starter in starters:
        assert starter.communicate(timeout=60) == (b"None\n", b"")
    with Store(path) as store:
        assert len(store.chats()) == 6
    assert sorted(file.name for file in path.parent.iterdir()) == ["specchat.db"]


def test_a_change_is_seen_by_a_store_that_was_open_before(store: Store, path: Path) -> None:
    with Store(path) as other:
        chat = other.create_chat("from elsewhere")
    assert store.chats() == [chat]


def test_a_file_locked_by_another_program_is_said_in_one_sentence(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store._db.execute("PRAGMA busy_timeout = 50")
    monkeypatch.setattr(database, "BUSY_S", 0.05)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="locked by another program"):
        store.create_chat()
    with pytest.raises(StoreError, match="locked by another program"):
        Store(path)
    assert store.chats() == []  # reading goes on
    holder.close()
    store.create_chat()


# ---- killed programs


def test_a_killed_program_leaves_all_it_had_written(path: Path) -> None:
    code = (
        "store = Store(path)\nchat = store.create_chat('killed')\n"
        "store.add_message(chat.id, 'user', 'go')\nreply = store.add_message(chat.id, 'assistant', '')\n"
        "for i in range(10**9):\n"
        "    store.append_rounds(reply, f'{i} ', [str(i)])\n    print(i, flush=True)\n"
    )
    writer = subprocess.Popen(child(code, path), stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    said = -1
    while said < 40:
        said = int(writer.stdout.readline())
    os.kill(writer.pid, signal.SIGKILL)
    said = int((writer.stdout.read().split() or [said])[-1])
    writer.wait()
    with Store(path) as store:
        assert store.notice is None
        prompt, reply = store.messages(store.chats()[0].id)
        assert prompt.content == "go"
        assert reply.finish_reason is None
        numbers = [int(number) for number in reply.content.split()]
        assert numbers == list(range(len(numbers)))
        assert said < len(numbers) <= said + 2
        assert reply.events == tuple(map(str, numbers))
        store.append_rounds(reply.id, "more", [])
        store.finish_message(reply.id, "cancelled")


# ---- files that cannot be read


def keep(path: Path) -> dict[str, bytes]:
    """What lies in the folder, by name."""
    return {file.name: file.read_bytes() for file in path.parent.iterdir()}


@pytest.mark.parametrize(
    "content",
    [b"hello", b"x" * 5000, b"\x00" * 5000, b"SQLite format 3\x00", b"SQLite format 3\x00" + b"\xff" * 8000],
    ids=["short", "text", "zeros", "magic", "header"],
)
def test_what_is_no_database_is_moved_aside(path: Path, content: bytes) -> None:
    path.parent.mkdir()
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


def test_an_empty_file_is_a_new_store(path: Path) -> None:
    path.parent.mkdir()
    path.touch()
    with Store(path) as store:
        assert store.notice is None


def test_moved_files_never_replace_each_other(path: Path) -> None:
    path.parent.mkdir()
    (path.parent / "specchat.db.broken-2-wal").write_bytes(b"of two")
    for content in (b"one", b"three", b"four"):
        path.write_bytes(content)
        Store(path).close()
    files = keep(path)
    assert {n: files[f"specchat.db.broken-{n}"] for n in (1, 3, 4)} == {1: b"one", 3: b"three", 4: b"four"}
    assert files["specchat.db.broken-2-wal"] == b"of two"


@pytest.mark.parametrize("content", [b"broken" * 1000, b""])
def test_its_log_moves_with_a_broken_file(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    Path(f"{path}-wal").write_bytes(b"the log")
    with Store(path) as store:
        assert store.chats() == []
    assert (path.parent / "specchat.db.broken-1-wal").read_bytes() == b"the log"


def test_a_newer_database_is_kept_as_it_was(path: Path) -> None:
    Store(path).close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 99")
    content = path.read_bytes()
    with Store(path) as store:
        assert store.notice
        assert "was written by a newer specchat" in store.notice
    assert (path.parent / "specchat.db.broken-1").read_bytes() == content


def test_another_programs_database_is_kept_as_it_was(path: Path) -> None:
    path.parent.mkdir()
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE chats (a, b)")
    content = path.read_bytes()
    with Store(path) as store:
        assert store.notice
        assert "belongs to another program" in store.notice
    assert (path.parent / "specchat.db.broken-1").read_bytes() == content


def test_a_folder_in_its_place_is_moved_aside(path: Path) -> None:
    path.mkdir(parents=True)
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
            store.append_rounds(reply, "more", ["line " * 50] * 10)
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


# ---- places that cannot be written


def test_a_folder_that_cannot_be_made_is_said_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"^chats are not stored: .*specchat.db"):
        Store(tmp_path / "file" / "specchat.db")


@pytest.mark.parametrize("what", ["folder", "new", "file", "unreadable"])
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
        elif what == "unreadable":
            path.write_bytes(b"no database")
            path.chmod(0o000)
            path.parent.chmod(0o777)
        elif what == "new":
            path.parent.chmod(0o555)
        else:
            path.parent.rmdir()
            folder.chmod(0o555)
        before = path.stat().st_mode if path.exists() else None
        code = (
            "from app.errors import StoreError\n"
            "import app.database\n"
            "if os.getuid() == 0: os.setuid(65534)  # root may write everywhere\n"
            "try:\n    Store(path)\nexcept StoreError as error:\n    print(error)\n"
        )
        done = subprocess.run(child(code, path), capture_output=True, text=True, timeout=30, check=False)
        assert done.stderr == ""
        assert done.stdout.startswith("chats are not stored: ")
        assert done.stdout.count("\n") == 1
        assert str(path) in done.stdout
        assert (path.stat().st_mode if path.exists() else None) == before
    finally:
        folder.chmod(0o755)
        if path.parent.exists():
            path.parent.chmod(0o755)
        shutil.rmtree(folder)


def test_a_full_disk_keeps_what_was_stored(store: Store) -> None:
    chat = store.create_chat("before")
    reply = store.add_message(chat.id, "assistant", "kept")
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {pages}")  # SQLite then fails as on a full disk

    def fill() -> None:
        for _ in range(100):
            store.append_rounds(reply, "x" * 5000, ["line"])

    with pytest.raises(StoreError, match="is full"):
        fill()
    messages = store.messages(chat.id)
    assert messages[0].content.startswith("kept")
    assert len(messages[0].content) == 4 + 5000 * len(messages[0].events)  # text and events: both or neither
    store._db.execute("PRAGMA max_page_count = 1000000")
    store.append_rounds(reply, "y", [])
    assert store.messages(chat.id)[0].content.endswith("y")


# ---- versions of the schema


def test_an_older_database_is_migrated_with_its_chats(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store(path, Clock()) as store:
        chat = store.create_chat("old")
    step = ("ALTER TABLE chats ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0",)
    monkeypatch.setattr(database, "_MIGRATIONS", (*database._MIGRATIONS, step))
    for _ in range(2):  # the second time there is nothing left to do
        with Store(path) as store:
            assert store.notice is None
            assert store.chats() == [chat]
            assert store._db.execute("SELECT pinned FROM chats").fetchall() == [(0,)]


def test_a_migration_that_fails_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store(path, Clock()) as store:
        chat = store.create_chat("old")
    step = ("ALTER TABLE chats ADD COLUMN pinned", "ALTER TABLE nothing ADD COLUMN x")
    with monkeypatch.context() as patch:
        patch.setattr(database, "_MIGRATIONS", (*database._MIGRATIONS, step))
        with pytest.raises(StoreError, match="nothing"):
            Store(path)
    with Store(path) as store:
        assert store.chats() == [chat]


# ---- against a model of it


class StoreMachine(RuleBasedStateMachine):
    """Random actions on a store, compared with a dictionary; reopening in between."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="specchat-test-"))
        self.clock = Clock()
        self.store = Store(self.folder / "specchat.db", self.clock)
        self.order: list[int] = []
        self.titles: dict[int, str] = {}
        self.deleted: set[int] = set()
        self.content: dict[int, list[tuple[int, str]]] = {}

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)

    @rule(title=clean)
    def create(self, title: str) -> None:
        chat = self.store.create_chat(title)
        self.order.append(chat.id)
        self.titles[chat.id], self.content[chat.id] = title, []

    @precondition(lambda self: self.order)
    @rule(data=st.data(), text=clean)
    def add(self, data: st.DataObject, text: str) -> None:
        chat = data.draw(st.sampled_from(self.order))
        self.content[chat].append((self.store.add_message(chat, "user", text), text))
        self.order.remove(chat)
        self.order.append(chat)

    @precondition(lambda self: any(self.content.values()))
    @rule(data=st.data(), text=clean)
    def append(self, data: st.DataObject, text: str) -> None:
        chat = data.draw(st.sampled_from([chat for chat, turns in self.content.items() if turns]))
        message, content = self.content[chat].pop()
        self.store.append_rounds(message, text, [text])
        self.content[chat].append((message, content + text))

    @precondition(lambda self: self.order)
    @rule(data=st.data(), title=clean)
    def rename(self, data: st.DataObject, title: str) -> None:
        chat = data.draw(st.sampled_from(self.order))
        self.store.rename_chat(chat, title)
        self.titles[chat] = title

    @precondition(lambda self: self.order)
    @rule(data=st.data())
    def delete_or_restore(self, data: st.DataObject) -> None:
        chat = data.draw(st.sampled_from(self.order))
        (self.store.restore_chat if chat in self.deleted else self.store.delete_chat)(chat)
        self.deleted ^= {chat}

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = Store(self.folder / "specchat.db", self.clock)
        assert self.store.notice is None

    @invariant()
    def agrees(self) -> None:
        shown = [chat for chat in reversed(self.order) if chat not in self.deleted]
        assert [(chat.id, chat.title) for chat in self.store.chats()] == [(chat, self.titles[chat]) for chat in shown]
        for chat in self.order:
            assert [(m.id, m.content) for m in self.store.messages(chat)] == self.content[chat]


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=25, stateful_step_count=25)
