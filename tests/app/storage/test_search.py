"""Search finds words where they stand, whatever signs they are typed with, and never after they are gone."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specchat.app.storage.attachments import FILE, Attachment
from specchat.app.storage.search_index import ATTACHED, BEGIN, END
from specchat.app.storage.store import Store
from tests.app.storage.helpers import add_turn


def found(store: Store, text: str) -> list[tuple[str, str, str]]:
    """Chat, role and excerpt of every hit, the hit in brackets."""
    while store.search.update():
        pass
    return [(hit.title, hit.role, hit.excerpt.replace(BEGIN, "[").replace(END, "]")) for hit in store.search.find(text)]


@pytest.fixture
def chat(store: Store) -> int:
    chat = store.create_chat("Lisbon in spring").id
    add_turn(store, chat, "Where is the Alfama?", "The Alfama is the oldest quarter of Lisbon.")
    return chat


@pytest.mark.usefixtures("chat")
def test_titles_come_first_and_then_the_newest_messages(store: Store) -> None:
    title = "Lisbon in spring"
    assert found(store, "lisb") == [
        (title, "", "[Lisbon] in spring"),
        (title, "assistant", "The Alfama is the oldest quarter of [Lisbon]."),
    ]
    assert [role for _, role, _ in found(store, "alfama")] == ["assistant", "user"]
    assert found(store, "oldest alfama")
    assert not found(store, "oldest porto")
    assert not found(store, "  ")
    store.create_chat("São João")
    assert found(store, "SAO joa") == [("São João", "", "[São] [João]")]


@pytest.mark.parametrize(
    "text", ["lisbon*", '"lisbon"', "lisbon OR", "lisbon AND (", "NEAR(lisbon", "-lisbon", "text:", "^"]
)
@pytest.mark.usefixtures("chat")
def test_signs_of_a_query_language_mean_nothing(store: Store, text: str) -> None:
    found(store, text)
    assert bool(found(store, text)) is (text in ("lisbon*", '"lisbon"', "-lisbon", "^") and text != "^")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.text(st.characters(codec="utf-8")))
def test_whatever_is_typed_is_answered(store: Store, text: str) -> None:
    store.search.find(text)


def test_what_changes_is_found_as_it_is_now(store: Store, chat: int) -> None:
    assert found(store, "spring")
    store.change_chat(chat, title="Porto in autumn")
    assert not found(store, "spring")
    assert found(store, "autumn")
    store.change_chat(chat, deleted=True)
    assert not found(store, "alfama")
    store.change_chat(chat, deleted=False)
    assert found(store, "alfama")
    waiting = store.add_message(chat, "user", "never asked")
    assert found(store, "never")
    store.take_back(waiting)
    assert not found(store, "never")
    assert store.add_message(chat, "user", "another one with the same id") == waiting
    assert len(found(store, "another")) == 1


def test_a_file_is_found_by_its_name_and_by_what_stands_in_it(store: Store) -> None:
    chat = store.create_chat("Tea").id
    file = Attachment(FILE, "src/kettle.py", "def brew(leaves):\n    return 'oolong'\n")
    asked = store.add_message(chat, "user", "What does this do?", attachments=(file,))
    for words, role in (("oolong", ATTACHED), ("kettle", ATTACHED), ("what does", "user")):
        ((_title, where, excerpt),) = found(store, words)
        assert where == role
        assert all(f"[{word}]" in excerpt.lower() for word in words.split())
    store.take_back(asked)
    assert found(store, "oolong") == []
