"""A chat of the store that `specchat ask` goes on with, or begins: each round is stored before it is printed."""

from __future__ import annotations

from specchat.app.chat.conversation import Conversation
from specchat.app.chat.stored_conversation import stored_conversation
from specchat.app.chat.turn import Turn, title_of
from specchat.app.errors import UsageError
from specchat.app.storage.attachments import Attachment
from specchat.app.storage.store import Chat, Store
from specchat.engine import Admitted, Event, Finished, Message, Round, Totals, to_json


class KeptReply:
    """One prompt and the reply to it, behind what a chat holds.

    Args:
        store: Has the chat.
        chat: The chat; None begins one.
        system: Instructions to the model, for a new chat.
    """

    def __init__(self, store: Store, chat: Chat | None, system: str = "") -> None:
        self._store = store
        self._chat = chat
        self._conversation = (
            Conversation(system=system) if chat is None else stored_conversation(chat, store.messages(chat.id))
        )
        self._reply = 0

    @property
    def thinking(self) -> bool | None:
        """Whether the chat's replies think; None where that is left to the settings."""
        return self._conversation.thinking

    def messages(self, prompt: str, attachments: tuple[Attachment, ...] = ()) -> tuple[Message, ...]:
        """What the model is asked: the chat so far, and the prompt with what is sent along."""
        self._turn = Turn(prompt, attachments=attachments)
        self._conversation.append(self._turn)
        return self._conversation.messages(self._turn)

    def begin(self) -> None:
        """Store the prompt, and an empty reply."""
        before, prompt = self._conversation.before(self._turn), self._turn.prompt
        attachments = self._turn.attachments
        parent = None
        if before is not None:
            parent = before.prompt_id if before.reply is None else before.reply.message_id or before.prompt_id
        with self._store.one_transaction():
            title = title_of(prompt or ", ".join(each.name for each in attachments))
            chat = self._chat or self._store.create_chat(title, self._conversation.system or "")
            row = self._store.add_message(chat.id, "user", prompt, parent=parent, attachments=attachments)
            self._reply = self._store.add_message(chat.id, "assistant", "", parent=row)

    def add(self, event: Event) -> None:
        """Store an event of the reply."""
        match event:
            case Admitted() | Totals():
                self._store.append_rounds(self._reply, "", [to_json(event)])
            case Round():
                self._store.append_rounds(self._reply, event.text, [to_json(event)])
            case Finished():
                with self._store.one_transaction():
                    self._store.append_rounds(self._reply, event.tail, [to_json(event)])
                    self._store.finish_message(self._reply, event.reason.value)


def found_chat(store: Store, wanted: str | None) -> Chat:
    """The chat that was written in last, or the newest with this in its title; a whole title comes first.

    Raises:
        UsageError: there is none.
    """
    chats = sorted(store.chats(), key=lambda chat: -chat.updated_at)
    if not chats:
        raise UsageError("there are no chats yet: specchat begins one")
    matching = [c for c in chats if wanted is None or wanted.casefold() in c.title.casefold()]
    if not matching:
        raise UsageError(f"no chat has {wanted!r} in its title: specchat export --list shows all titles")
    exact = [c for c in matching if wanted is not None and c.title.casefold() == wanted.casefold()]
    return (exact or matching)[0]
