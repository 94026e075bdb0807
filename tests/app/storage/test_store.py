"""The store on a real file: what is written comes back, also after random use that is compared with a dictionary."""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from specchat.app.errors import StoreError
from specchat.app.storage.attachments import FILE, PASTE, Attachment
from specchat.app.storage.store import Store
from specchat.engine import MessagePart, PartKind, message_parts
from tests.app.storage.helpers import Clock, clean

anything = st.text(st.characters())


def test_unknown_chats_and_messages_are_refused_by_name(store: Store) -> None:
    assert store.messages(7) == []
    for action, what in (
        (lambda: store.change_chat(7, title="x"), "chat 7"),
        (lambda: store.add_message(7, "user", "x"), "chat 7"),
        (lambda: store.append_rounds(9, message_parts("x"), ["y"]), "message 9"),
        (lambda: store.finish_message(9, "eos"), "message 9"),
    ):
        with pytest.raises(StoreError, match=f"{what} is not in"):
            action()


def test_a_closed_store_says_so(store: Store) -> None:
    store.close()
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.chats()


@given(anything)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_half_characters_become_replacement_characters(store: Store, text: str) -> None:
    chat = store.create_chat(text)
    store.append_rounds(store.add_message(chat.id, "user", text), message_parts(text), [text])
    content = store.messages(chat.id)[0].content
    assert "\ufffd" in content or "\ud83d" not in text
    content.encode()


CODE = Attachment(FILE, "a.py", "print(1)\n", 5)
LOG = Attachment(PASTE, "[pasted 2 lines · 8 B]", "one\ntwo\n")


def test_a_message_keeps_its_attachments_and_a_fork_copies_them(path: Path) -> None:
    with Store(path, Clock()) as store:
        chat = store.create_chat("Code")
        prompt = store.add_message(chat.id, "user", f"see @a.py {LOG.name}", attachments=(CODE, LOG))
        reply = store.add_message(chat.id, "assistant", "fine", parent=prompt)
        store.attachments.set_tokens(prompt, LOG.name, 4)
        fork = store.fork_chat([prompt, reply], "Code (fork)")
    with Store(path) as store:
        counted = (CODE, Attachment(PASTE, LOG.name, LOG.text, 4))
        for each in (chat, fork):
            assert [message.attachments for message in store.messages(each.id)] == [counted, ()]
        assert store.prompts(10) == []  # without its chat, the sign of the paste would stand for nothing


def test_only_prompts_without_replies_are_taken_back(store: Store) -> None:
    chat = store.create_chat("").id
    asked = store.add_message(chat, "user", "asked")
    waiting = store.add_message(chat, "user", "waiting", parent=asked)
    store.add_message(chat, "assistant", "", parent=asked)
    store.take_back(waiting)
    store.take_back(asked)
    assert [(m.role, m.content) for m in store.messages(chat)] == [("user", "asked"), ("assistant", "")]
    failed = store.add_message(chat, "user", "too long", parent=asked)
    reply = store.add_message(chat, "assistant", "", parent=failed)
    store.append_rounds(reply, message_parts(""), ["{}"])
    store.finish_message(reply, "error")
    store.take_back(failed)
    assert [m.content for m in store.messages(chat)] == ["asked", ""]


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
        self.content: dict[int, list[tuple[int, str, tuple[str, ...]]]] = {}
        """Id, content and trace lines of the messages of each chat."""

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
        self.content[chat].append((self.store.add_message(chat, "user", text), text, ()))
        self.order.remove(chat)
        self.order.append(chat)

    @precondition(lambda self: any(self.content.values()))
    @rule(data=st.data(), text=clean)
    def append(self, data: st.DataObject, text: str) -> None:
        chat = data.draw(st.sampled_from([chat for chat, turns in self.content.items() if turns]))
        message, content, lines = self.content[chat].pop()
        self.store.append_rounds(message, message_parts(text), [text])
        self.content[chat].append((message, content + text, (*lines, text)))

    @precondition(lambda self: self.order)
    @rule(data=st.data(), title=clean)
    def rename(self, data: st.DataObject, title: str) -> None:
        chat = data.draw(st.sampled_from(self.order))
        self.store.change_chat(chat, title=title)
        self.titles[chat] = title

    @precondition(lambda self: self.order)
    @rule(data=st.data())
    def delete_or_restore(self, data: st.DataObject) -> None:
        chat = data.draw(st.sampled_from(self.order))
        self.store.change_chat(chat, deleted=chat not in self.deleted)
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
            assert [(m.id, m.content, m.events) for m in self.store.messages(chat)] == self.content[chat]


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=15, stateful_step_count=20)


def test_calls_and_results_are_parts_of_their_own(path: Path) -> None:
    said = (
        MessagePart(PartKind.TEXT, "I look."),
        MessagePart(PartKind.CALL, '{"at": "sea"}', "look", "c1"),
        MessagePart(PartKind.CALL, "{}", "look", "c2"),
        MessagePart(PartKind.RESULT, "a ship", "look", "c1"),
        MessagePart(PartKind.RESULT, "", "look", "c2"),
        MessagePart(PartKind.TEXT, "A ship."),
    )
    with Store(path, Clock()) as store:
        chat = store.create_chat("Sea")
        row = store.add_message(chat.id, "assistant", "")
        store.append_rounds(row, said[:1], [])
        store.append_rounds(row, said[1:], [])
    with Store(path, Clock()) as store:
        (message,) = store.messages(chat.id)
        (copy,) = store.messages(store.fork_chat([row], "Fork").id)
        assert message.parts == copy.parts == said
        assert message.content == "I look.A ship."
