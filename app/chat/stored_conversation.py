"""Builds a conversation from the rows of the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from specchat.app.chat.conversation import Conversation, Turn
from specchat.app.chat.reply import Reply, Stage
from specchat.app.storage.store import Chat, StoredMessage


def stored_conversation(
    chat: Chat, messages: Sequence[StoredMessage], read: Callable[[int], Sequence[str]] | None = None
) -> Conversation:
    """The conversation of a chat.

    A prompt without a reply was interrupted before its first word. A message whose parent is missing, in a damaged
    chat, follows the turn before it.

    Args:
        chat: The chat.
        messages: Its messages, oldest first.
        read: Returns the trace lines of a message that came without them.
    """
    turns: dict[int, Turn] = {}
    """By the row of the prompt."""
    parents: dict[int, tuple[Turn, Reply | None]] = {}
    """What a prompt with this parent follows; a reply of None stands for the chosen one."""
    for message in messages:
        if message.role == "user":
            turn = Turn(message.content, prompt_id=message.id, attachments=message.attachments)
            turns[message.id] = turn
            parents[message.id] = turn, None
        elif turns:
            turn = turns.get(message.parent or 0) or list(turns.values())[-1]
            parents[message.id] = turn, _add_reply(turn, message, read)
    for turn in turns.values():
        turn.wanted = max(len(turn.replies), 1)
        if turn.reply is None:
            turn.reply = Reply()
            turn.reply.stage = Stage.INTERRUPTED
            turn.replies.append(turn.reply)
    conversation = Conversation(chat, system=chat.system, thinking=chat.thinking, every=list(turns.values()))
    first = _link([message for message in messages if message.role == "user"], turns, parents)
    if first is not None:
        conversation.turns = [first]
        conversation.show_version(first, first.version)
    conversation.name_models()
    return conversation


def _link(
    prompts: Sequence[StoredMessage], turns: dict[int, Turn], parents: dict[int, tuple[Turn, Reply | None]]
) -> Turn | None:
    """Connect prompts to what they follow and to their other versions; return the chosen first one."""
    first: Turn | None = None
    last: Turn | None = None
    for prompt in prompts:
        turn = turns[prompt.id]
        if last is None or prompt.parent is None:
            shown, first = first, turn if first is None or prompt.chosen else first
        else:
            before, reply = parents.get(prompt.parent) or (last, None)
            reply = reply or before.reply
            shown = before.following.get(reply)
            if shown is None or prompt.chosen:
                before.following[reply] = turn
        if shown is not None:
            turn.versions = shown.versions
            turn.versions.append(turn)
        last = turn
    return first


def _add_reply(turn: Turn, message: StoredMessage, read: Callable[[int], Sequence[str]] | None) -> Reply:
    lines = (lambda: message.events) if read is None else partial(read, message.id)
    reply = Reply.stored(message.content, message.finish_reason, lines, message.thinking or "")
    reply.message_id, reply.model = message.id, message.model
    turn.replies.append(reply)
    if turn.reply is None or message.chosen:
        turn.reply = reply
    return reply
