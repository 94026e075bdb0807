"""One file in several hands: threads, programs, and programs that are killed."""

import sqlite3
import subprocess
import threading
import time
from pathlib import Path

import pytest

from specchat.app.errors import StoreError
from specchat.app.storage import database
from specchat.app.storage.attachments import PASTE, Attachment
from specchat.app.storage.store import Store
from specchat.engine import message_parts
from tests.app.storage.helpers import child


def test_threads_share_a_store(store: Store) -> None:
    chat = store.create_chat()

    def write(name: str) -> None:
        reply = store.add_message(chat.id, "assistant", "")
        for i in range(50):
            store.append_rounds(reply, message_parts(name), [f"{name}{i}"])

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
        "for i in range(150): store.append_rounds(reply, message_parts(sys.argv[2]), [str(i)])\n"
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


def test_a_file_that_another_program_locks_is_said(store: Store, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store._file._db.execute("PRAGMA busy_timeout = 50")
    monkeypatch.setattr(database, "BUSY_S", 0.05)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="locked by another program"):
        store.create_chat()
    with pytest.raises(StoreError, match="locked by another program"):
        Store(path)
    assert store.chats() == []  # reading still works
    holder.close()
    store.create_chat()


def test_what_two_programs_type_in_one_chat_is_kept_and_joined_at_the_next_start(path: Path) -> None:
    paste, same = Attachment(PASTE, "[Paste 1]", "long"), Attachment(PASTE, "[Paste 1]", "another")
    with Store(path) as first:
        first.unsent.keep(7, "as both begin [Paste 1]", (paste,))
        with Store(path) as second:
            assert second.unsent.texts() == {7: "as both begin [Paste 1]"}
            second.unsent.keep(7, "of the second [Paste 1]")
            first.unsent.keep(7, "of the first", ())
            second.unsent.keep(8, "[Paste 1]", (paste,))
            first.unsent.keep(8, "another [Paste 1]", (same,))
            assert first.unsent.texts() == {7: "of the first", 8: "another [Paste 1]"}
            assert second.unsent.texts() == {7: "of the second [Paste 1]", 8: "[Paste 1]"}
    with Store(path) as alone:
        assert alone.unsent.texts() == {7: "of the first\n\nof the second [Paste 1]", 8: "another [Paste 1]"}
        assert alone.unsent.attachments() == {7: (paste,), 8: (same,)}
        alone.unsent.keep(7, "")
        alone.unsent.keep(8, "", ())
    with Store(path) as later:
        assert later.unsent.texts() == {8: "[Paste 1]"}
        assert later.unsent.attachments() == {8: (paste,)}
