"""Builds conversations from the rows of the store, and the text of them that `specchat distill` learns from."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from specchat.app.chat.conversation import Conversation, Prompt
from specchat.app.chat.reply import Reply
from specchat.app.chat.reply_stage import Stage
from specchat.app.storage.store import Chat, Store, StoredMessage
from specchat.engine import PartKind, create_text, make_folder


def stored_conversation(
    chat: Chat, messages: Sequence[StoredMessage], read: Callable[[int], Sequence[str]] | None = None
) -> Conversation:
    """The conversation of a chat.

    A prompt without a reply was interrupted before its first word. A message whose parent is missing, in a damaged
    chat, follows the prompt before it.

    Args:
        chat: The chat.
        messages: Its messages, oldest first.
        read: Returns the trace lines of a message that came without them.
    """
    prompts: list[tuple[Prompt, StoredMessage]] = []
    nodes: dict[int | None, Prompt | Reply] = {}
    for message in messages:
        if message.role == "user":
            results = tuple(part for part in message.parts if part.kind is PartKind.RESULT)
            prompt = Prompt(message.content, message.attachments, row=message.id, results=results)
            nodes[message.id] = prompt
            prompts.append((prompt, message))
        elif prompts:
            parent = nodes.get(message.parent)
            nodes[message.id] = reply = _reply(message, read)
            (parent if isinstance(parent, Prompt) else prompts[-1][0]).attach(reply, chosen=message.chosen)
    for prompt, _ in prompts:
        prompt.wanted = max(len(prompt.children), 1)
        if not prompt.children:
            interrupted = Reply()
            interrupted.stage = Stage.INTERRUPTED
            prompt.attach(interrupted)
    conversation = Conversation(chat, system=chat.system, thinking=chat.thinking, servers=chat.servers)
    last: Prompt | None = None
    for prompt, message in prompts:
        before = None if last is None or message.parent is None else nodes.get(message.parent, last)
        if isinstance(before, Prompt):
            before = before.reply
        (before or conversation.root).attach(prompt, chosen=message.chosen)
        last = prompt
    conversation.show_end()
    conversation.name_models()
    return conversation


def _reply(message: StoredMessage, read: Callable[[int], Sequence[str]] | None) -> Reply:
    lines = (lambda: message.events) if read is None else partial(read, message.id)
    reply = Reply.stored(message.parts, message.finish_reason, lines)
    reply.row, reply.model = message.id, message.model
    return reply


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
