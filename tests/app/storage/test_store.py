"""The store, on a real file: what is written comes back."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specchat.app.errors import StoreError
from specchat.app.storage.store import Chat, Store
from tests.app.storage.helpers import Clock, clean

anything = st.text(st.characters())


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
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
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
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_half_characters_become_replacement_characters(store: Store, text: str) -> None:
    chat = store.create_chat(text)
    store.append_rounds(store.add_message(chat.id, "user", text), text, [text])
    content = store.messages(chat.id)[0].content
    assert "\ufffd" in content or "\ud83d" not in text
    content.encode()
