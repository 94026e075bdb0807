"""Several replies to one prompt in the store, prompts that wait, and files of the version before."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from specchat.app.chat.reply import Stage
from specchat.app.chat.stored_conversation import stored_conversation
from specchat.app.storage import database
from specchat.app.storage.store import Chat, Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "chats.db", now=lambda: 1.0)


def test_prompts_sent_ahead_keep_their_own_replies(store: Store) -> None:
    chat = store.create_chat("ahead").id
    first = store.add_message(chat, "user", "one")
    second = store.add_message(chat, "user", "two", parent=first)
    third = store.add_message(chat, "user", "three", parent=second)
    for prompt, text in ((first, "to one"), (second, "to two")):
        reply = store.add_message(chat, "assistant", "", parent=prompt)
        store.append_rounds(reply, text, [])
        store.finish_message(reply, "eos")
    turns = stored_conversation(Chat(chat, "ahead", 1.0), store.messages(chat)).turns
    assert [(turn.prompt, turn.reply.text if turn.reply else None) for turn in turns] == [
        ("one", "to one"),
        ("two", "to two"),
        ("three", ""),
    ]
    assert turns[2].reply is not None
    assert turns[2].reply.stage is Stage.INTERRUPTED
    assert turns[2].prompt_id == third


def test_one_of_several_is_chosen(store: Store) -> None:
    chat = store.create_chat("several").id
    other = store.add_message(chat, "user", "before")
    single = store.add_message(chat, "assistant", "alone", parent=other)
    prompt = store.add_message(chat, "user", "?", parent=single)
    replies = [store.add_message(chat, "assistant", t, parent=prompt, chosen=t == "a") for t in "abc"]
    store.choose(replies[2])
    chosen = {m.id: m.chosen for m in store.messages(chat) if m.role == "assistant"}
    assert chosen == {single: True, replies[0]: False, replies[1]: False, replies[2]: True}
    before, turn = stored_conversation(Chat(chat, "", 1.0), store.messages(chat)).turns
    assert (before.replies, before.wanted) == ([before.reply], 1)
    assert [reply.text for reply in turn.replies] == ["a", "b", "c"]
    assert turn.reply is turn.replies[2]


def test_only_prompts_without_replies_are_taken_back(store: Store) -> None:
    chat = store.create_chat("").id
    asked = store.add_message(chat, "user", "asked")
    waiting = store.add_message(chat, "user", "waiting", parent=asked)
    store.add_message(chat, "assistant", "", parent=asked)
    store.take_back(waiting)
    store.take_back(asked)
    assert [(m.role, m.content) for m in store.messages(chat)] == [("user", "asked"), ("assistant", "")]


def test_the_draft(store: Store) -> None:
    assert store.unsent.texts() == {}
    for text in ("half a", "half a thought \ud800"):
        store.unsent.keep(0, text)
        store.unsent.keep(7, "of another chat")
        assert store.unsent.texts() == {0: text.replace("\ud800", "\ufffd"), 7: "of another chat"}
    store.unsent.keep(0, "")
    assert store.unsent.texts() == {7: "of another chat"}


def test_a_file_of_the_first_version_is_carried_over(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    db = sqlite3.connect(path)
    for statement in database._MIGRATIONS[0]:
        db.execute(statement)
    db.execute("PRAGMA user_version = 1")
    db.execute("INSERT INTO chats (title, updated_at) VALUES ('old', 1)")
    for role, text in (("user", "one"), ("assistant", "to one"), ("user", "two"), ("assistant", "to two")):
        db.execute(
            "INSERT INTO messages (chat_id, role, content, created_at, finish_reason) VALUES (1, ?, ?, 1, 'eos')",
            (role, text),
        )
    db.commit()
    db.close()
    with Store(path) as store:
        assert store.notice is None
        (chat,) = store.chats()
        turns = stored_conversation(chat, store.messages(chat.id)).turns
    assert [(turn.prompt, turn.reply.text if turn.reply else None) for turn in turns] == [
        ("one", "to one"),
        ("two", "to two"),
    ]


def test_each_program_has_an_unsent_text_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    with Store(path) as first, Store(path) as second:
        assert first.unsent.texts() == second.unsent.texts() == {}
        first.unsent.keep(0, "of the first")
        second.unsent.keep(0, "of the second")
        first.unsent.keep(7, "of a chat")
        assert first.unsent.texts() == {0: "of the first", 7: "of a chat"}
        assert second.unsent.texts() == {0: "of the second", 7: "of a chat"}
        first.unsent.keep(0, "")
    with Store(path) as alone:
        assert alone.unsent.texts() == {0: "of the second", 7: "of a chat"}
        with Store(path) as beside:
            assert beside.unsent.texts() == {7: "of a chat"}
