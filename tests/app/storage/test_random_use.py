"""Random use of a store, compared with a dictionary."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from specchat.app.storage.store import Store
from tests.app.storage.helpers import Clock, clean


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
