"""What stored chats give the engine to draft from: handed over, kept on disk, taken back, never in another's way."""

import sqlite3
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specchat.app.chat.archive import Archive
from specchat.app.chat.past_replies import PastReplies
from specchat.app.storage.replies import ReplyTokens, text_digest
from specchat.app.storage.store import Chat, Store
from specchat.engine import Engine, EngineConfig, OtherChats
from specchat.engine.tools.runner import running
from tests.app.storage.helpers import add_turn
from tests.waiting import PATIENCE_S, until

MODEL = "tiny"
QUESTION = "Why is the sky blue?"
REPLY = "Because air scatters blue light more than red light, in all directions."


@pytest.fixture(scope="module")
def engine(tiny_model: Callable[..., Path]) -> Iterator[Engine]:
    with running(EngineConfig(str(tiny_model()), device="cpu", dtype="float32", slots=1, context=256)) as (engine, *_):
        yield engine


@pytest.fixture
def chats(engine: Engine) -> Iterator[OtherChats]:
    """Other chats of the engine, which has none when a test begins."""
    yield engine.other_chats
    engine.other_chats.update({}, engine.other_chats.keys)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "specchat.db")


def talk(store: Store, model: str = MODEL, reason: str | None = "eos") -> tuple[Chat, int]:
    """A chat with one reply, and that one's row."""
    chat = store.create_chat("sky")
    return chat, add_turn(store, chat.id, QUESTION, REPLY, model=model, reason=reason)


def on_disk(store: Store, tokens: list[int]) -> bool:
    """Whether these tokens are in any file next to the chats."""
    wanted = array("I", tokens).tobytes()
    return any(wanted in path.read_bytes() for path in store.path.parent.glob("*.tokens*"))


def test_a_stored_reply_is_given_and_taken_back_with_its_chat(engine: Engine, chats: OtherChats, store: Store) -> None:
    chat, row = talk(store)
    talk(store, model="another")
    talk(store, reason=None)
    tokens = chats.encode(QUESTION, REPLY)
    past = PastReplies(store)
    past.use(engine, MODEL)
    archive = Archive(store, pytest.fail, past)
    until(lambda: chats.keys == {row} and on_disk(store, tokens))

    archive.change(chat, deleted=True).result(PATIENCE_S)
    until(lambda: chats.keys == set() and not on_disk(store, tokens))

    archive.change(chat, deleted=False).result(PATIENCE_S)
    until(lambda: chats.keys == {row})
    archive.change(chat, deleted=True)
    archive.close()
    assert chats.keys == set()
    assert not on_disk(store, tokens)


@pytest.mark.parametrize("damage", ["garbage", "version", "folder"])
def test_a_damaged_file_is_made_anew_or_left_out(engine: Engine, chats: OtherChats, store: Store, damage: str) -> None:
    _, row = talk(store)
    tokens = ReplyTokens(store.path.with_suffix(".tokens"))
    if damage == "folder":
        tokens.path.mkdir()
    else:
        tokens.keep("t", {number: (b"x", [1] * 2000) for number in range(1, 9)})
        _damage(tokens.path, damage)
    past = PastReplies(store)
    past.use(engine, MODEL)
    until(lambda: chats.keys == {row})
    past.close()
    found = tokens.known(chats.tokenizer_digest, [row])
    assert (damage == "folder") == (row not in found)
    if found:
        assert found[row] == (text_digest(QUESTION, REPLY), array("I", chats.encode(QUESTION, REPLY)))
        assert tokens.path.stat().st_mode & 0o077 == 0


def _damage(path: Path, kind: str) -> None:
    if kind == "garbage":
        path.write_bytes(b"this is no database, and has not been one" * 200)
    else:
        db = sqlite3.connect(path)
        db.execute("PRAGMA user_version = 99")
        db.close()
