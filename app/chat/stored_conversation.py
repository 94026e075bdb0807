"""Builds a conversation from the rows of the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from specchat.app.chat.conversation import Conversation, Prompt
from specchat.app.chat.reply import Reply
from specchat.app.chat.reply_stage import Stage
from specchat.app.storage.store import Chat, StoredMessage
from specchat.engine import PartKind


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
