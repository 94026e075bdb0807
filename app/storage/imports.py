"""Import of chats into the store: a chat that was imported before gets what is new in the file, and loses nothing."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from enum import StrEnum

from specchat.app.storage.database import storable
from specchat.app.storage.store import Chat, Store, StoredMessage

ImportedChat = tuple[Chat, Sequence[StoredMessage]]
"""A chat and its messages, of which ids and parents are indices among them; `updated_at` is 0 if unknown."""


class Outcome(StrEnum):
    """What an import did with a chat."""

    NEW = "new"
    UPDATED = "updated"
    UNCHANGED = "unchanged"


def import_chats(store: Store, chats: Iterable[ImportedChat]) -> list[Outcome]:
    """Add or update all of these chats, or none."""
    with store.one_transaction():
        return [_import(store, chat, messages) for chat, messages in chats]


def _import(store: Store, imported: Chat, messages: Sequence[StoredMessage]) -> Outcome:
    """Add a chat, or the messages that the chat with its `uid` lacks.

    A message is there already if one with its role and text follows the same message. The path that the chat shows
    changes only where nothing followed yet, or if the file is newer and the chat has no other messages.
    """
    known = store.chat_of(imported.uid) if imported.uid else None
    chat = known or store.create_chat(imported.title, imported.system, imported.uid)
    stored = store.messages(chat.id, events=False) if known else []
    rows = _matches(messages, stored)
    own = len(stored) > sum(row is not None for row in rows)
    leads = known is None or (imported.updated_at > known.updated_at and not own)
    followed = {message.parent for message in stored}
    added = None in rows
    for place, message in enumerate(messages):
        row, parent = rows[place], None if message.parent is None else rows[message.parent]
        if row is None:
            chosen = message.chosen and (leads or parent not in followed)
            attached, model = message.attachments, message.model
            row = store.add_message(
                chat.id, message.role, "", parent=parent, chosen=chosen, attachments=attached, model=model
            )
            store.append_rounds(row, message.parts, message.events)
            if message.finish_reason is not None:
                store.finish_message(row, message.finish_reason)
            rows[place] = row
        elif leads and message.chosen:
            store.choose(row)
    if imported.updated_at and (added or leads):
        store.change_chat(chat.id, updated_at=max(imported.updated_at, known.updated_at if known else 0.0))
    if known is None:
        return Outcome.NEW
    return Outcome.UPDATED if added else Outcome.UNCHANGED


def _matches(messages: Sequence[StoredMessage], stored: Sequence[StoredMessage]) -> list[int | None]:
    """The row of each message among the stored ones; None for a new one."""
    there: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for message in stored:
        there[_key(message, message.parent)].append(message.id)
    rows: list[int | None] = []
    for message in messages:
        parent = None if message.parent is None else rows[message.parent]
        same = there[_key(message, parent)] if (parent is None) == (message.parent is None) else []
        rows.append(same.pop(0) if same else None)
    return rows


def _key(message: StoredMessage, parent: int | None) -> tuple[object, ...]:
    sent_along = tuple((each.name, each.text) for each in message.attachments)
    return parent, message.role, storable(message.content), sent_along
