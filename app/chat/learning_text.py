"""Stored chats as text for `specchat distill`: conversations with the replies of one model, one a line."""

from __future__ import annotations

import json
from pathlib import Path

from specchat.app.chat.conversation import Conversation
from specchat.app.chat.reply_stage import Stage
from specchat.app.chat.stored_conversation import stored_conversation
from specchat.app.storage.store import Store
from specchat.engine import create_text, make_folder


def write_chats(store: Store, model: str, file: Path) -> None:
    """Write the chats that are not deleted into a file that only its owner can read, the oldest first.

    A chat ends before the first reply that another model wrote or that has no end.

    Args:
        store: The chats.
        model: The model whose replies count, as the settings name it.
        file: Replaced if it exists.

    Raises:
        OSError: The file cannot be written.
        StoreError: The chats cannot be read.
    """
    make_folder(file.parent)
    file.unlink(missing_ok=True)
    with create_text(file) as out:
        for chat in sorted(store.chats(), key=lambda chat: chat.updated_at):
            messages = _messages(stored_conversation(chat, store.messages(chat.id, events=False)), model)
            if messages:
                print(json.dumps({"messages": messages}), file=out)


def _messages(conversation: Conversation, model: str) -> list[dict[str, str]]:
    messages = [{"role": "system", "content": conversation.system}] if conversation.system else []
    system = len(messages)
    for prompt in conversation.prompts:
        reply = prompt.reply
        if reply is None or reply.model != model or not reply.text or reply.stage is not Stage.ENDED:
            break
        messages += [{"role": "user", "content": prompt.content}, {"role": "assistant", "content": reply.text}]
    return messages if len(messages) > system else []
