"""What happens is stored in order, and what could not be stored is stored later: no reply has a hole."""

from concurrent.futures import wait
from functools import partial
from pathlib import Path

import pytest

from specchat.app.chat import archive as module
from specchat.app.chat.archive import Archive
from specchat.app.chat.conversation import Conversation, Prompt
from specchat.app.chat.reply import Reply
from specchat.app.chat.stored_conversation import stored_conversation
from specchat.app.storage.store import Store, StoredMessage
from specchat.engine import Finished, FinishReason, Record
from tests.failing import fails
from tests.stress.numbered import numbered, word
from tests.waiting import PATIENCE_S


def answering(folder: Path) -> tuple[Store, Archive, list[str], Reply]:
    """A store, its archive, what that says, and a running reply."""
    store, said, reply = Store(folder / "specchat.db"), list[str](), Reply("r")
    archive, turn = Archive(store, said.append), Prompt("question")
    conversation = Conversation(path=[turn, reply])
    archive.prompt(conversation, turn)
    wait([archive.begin(conversation, turn, [reply])])
    return store, archive, said, reply


def stored(archive: Archive, folder: Path) -> list[StoredMessage]:
    """The messages of the chat once the archive is closed."""
    archive.close()
    with Store(folder / "specchat.db") as again:
        return again.messages(1)


def test_a_disk_that_was_full_leaves_no_hole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.0)
    store, archive, said, reply = answering(tmp_path)
    pages = archive.do(lambda: store._file._db.execute("PRAGMA page_count").fetchone()[0]).result(PATIENCE_S)
    for number in range(60):
        limit = pages if 10 <= number < 40 else 1_000_000  # SQLite then fails as on a full disk
        archive.do(partial(store._file._db.execute, f"PRAGMA max_page_count = {limit}"))
        archive.append([(reply, [numbered("r", number, 1, 0.0, word(number))])])
    end: list[Record] = [Finished("r", FinishReason.EOS, "the end", "", 0.0)]
    wait([archive.append([(reply, end)])])
    assert len(said) == 1
    assert "is full" in said[0]
    _, reply = stored(archive, tmp_path)
    assert reply.content == "".join(f"and {word(number)}" for number in range(60)) + "the end"
    assert len(reply.events) == 61
    assert reply.finish_reason == "eos"


def test_what_could_not_be_stored_is_tried_once_more_at_the_end(tmp_path: Path) -> None:
    store, archive, said, reply = answering(tmp_path)
    archive.do(partial(store._file._db.execute, "PRAGMA query_only = 1"))
    wait([archive.append([(reply, [numbered("r", number, 1, 0.0, word(number))])]) for number in range(5)])
    assert len(said) == 1
    archive.do(partial(store._file._db.execute, "PRAGMA query_only = 0"))
    assert stored(archive, tmp_path)[1].content == "".join(f"and {word(number)}" for number in range(5))


def test_a_prompt_that_failed_is_stored_later_with_its_reply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.0)
    store, said = Store(tmp_path / "specchat.db"), list[str]()
    archive, conversation = Archive(store, said.append), Conversation()
    turns = [Prompt(f"question {number}") for number in range(3)]
    for number, turn in enumerate(turns):
        locked = number == 1
        archive.do(partial(store._file._db.execute, f"PRAGMA query_only = {int(locked)}"))
        conversation.append(turn)
        archive.prompt(conversation, turn)
        reply = Reply(f"r{number}")
        conversation.begin_replies(turn, [reply])
        archive.begin(conversation, turn, turn.replies)
        end = Finished(f"r{number}", FinishReason.EOS, "", "", 0.0)
        wait([archive.append([(reply, [numbered(f"r{number}", 0, 1, 0.0, word(number)), end])])])
        assert (reply.row is None) is locked
        assert len(said) == min(number, 1)
    messages = stored(archive, tmp_path)
    assert [message.content for message in messages] == [
        text for number in range(3) for text in (f"question {number}", f"and {word(number)}")
    ]
    assert [message.parent for message in messages] == [None, *(message.id for message in messages[:-1])]
    assert {message.finish_reason for message in messages if message.role == "assistant"} == {"eos"}


def test_what_follows_a_prompt_that_waits_for_the_disk_is_stored_behind_the_reply_that_was_shown_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.0)
    store = Store(tmp_path / "specchat.db")
    archive = Archive(store, list[str]().append)
    replies = Reply("first"), Reply("second")
    turn, conversation = Prompt("question"), Conversation()
    conversation.append(turn)
    conversation.begin_replies(turn, replies)
    archive.prompt(conversation, turn)
    wait([archive.begin(conversation, turn, replies)])
    archive.do(partial(store._file._db.execute, "PRAGMA query_only = 1"))
    later = Prompt("and then?")
    conversation.append(later)
    wait([archive.prompt(conversation, later)])
    conversation.select(replies[1])
    archive.do(partial(store._file._db.execute, "PRAGMA query_only = 0"))
    wait([archive.choose(replies[1])])
    assert stored(archive, tmp_path)[-1].parent == replies[0].row


def test_a_row_that_has_gone_does_not_hold_up_what_comes_behind_it(tmp_path: Path) -> None:
    store, archive, said, reply = answering(tmp_path)
    store.finish_message(2, "error")
    store.add_message(1, "user", "of another program", parent=2)
    archive.take_back(Conversation(store.chats()[0]), [Prompt("question", row=1)])
    gone = Reply("gone")
    gone.row = 99
    archive.append([(gone, [numbered("gone", 0, 1, 0.0, word(0))])])
    archive.append([(reply, [numbered("r", 0, 1, 0.0, word(1))])])
    assert stored(archive, tmp_path)[1].content == f"and {word(1)}"
    assert ["constraint failed" in said[0], "message 99 is not in" in said[1]] == [True, True]


def test_a_change_that_fails_by_a_bug_does_not_hold_up_what_comes_behind_it(tmp_path: Path) -> None:
    _store, archive, said, reply = answering(tmp_path)
    archive.in_order(fails(RuntimeError("bug")))
    archive.append([(reply, [numbered("r", 0, 1, 0.0, word(1))])])
    assert stored(archive, tmp_path)[1].content == f"and {word(1)}"
    assert said == ["a change is not stored (RuntimeError: bug); later ones are"]


@pytest.mark.parametrize("written", ["before", "after", "never"])
def test_what_follows_a_prompt_that_another_program_removed_is_stored(tmp_path: Path, written: str) -> None:
    """SQLite gives the id of a removed row to the next one, unless a later row is there."""
    store, archive, said, _ = answering(tmp_path)
    with Store(tmp_path / "specchat.db") as other:
        removed = other.add_message(1, "user", "removed", parent=2)
        (chat,) = store.chats()
        conversation = archive.open(chat).result(PATIENCE_S)
        elsewhere = other.create_chat().id
        for place in ("before", "after"):
            if place == written:
                other.add_message(elsewhere, "user", "elsewhere")
            other.take_back(removed)
    turn, reply = Prompt("kept"), Reply("kept")
    conversation.append(turn)
    archive.prompt(conversation, turn)
    conversation.begin_replies(turn, [reply])
    archive.begin(conversation, turn, turn.replies)
    archive.append([(reply, [numbered("kept", 0, 1, 0.0, word(0))])])
    read = stored_conversation(chat, stored(archive, tmp_path))
    assert [(turn.text, turn.reply.text) for turn in read.prompts] == [("question", ""), ("kept", f"and {word(0)}")]
    assert said == []
