"""A conversation made from the rows of the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from specchat.app.chat.conversation import Conversation, Turn
from specchat.app.chat.reply import Reply, Stage
from specchat.app.storage.store import Chat, StoredMessage


def stored_conversation(
    chat: Chat, messages: Sequence[StoredMessage], read: Callable[[int], Sequence[str]] | None = None
) -> Conversation:
    """The conversation as it was stored; `read` gives the trace lines of a message that came without them.

    A prompt without a reply was interrupted before its first word.

    A row that follows one which is not there follows the turn before it: what is left of a damaged chat is shown.
    """
    turns: dict[int, Turn] = {}
    """By the row of the prompt."""
    of_reply: dict[int, tuple[Turn, Reply]] = {}
    """By the row of the reply."""
    for message in messages:
        if message.role == "user":
            turns[message.id] = Turn(message.content, prompt_id=message.id, attachments=message.attachments)
        elif turns:
            turn = turns.get(message.parent or 0) or list(turns.values())[-1]
            of_reply[message.id] = turn, _add_reply(turn, message, read)
    for turn in turns.values():
        turn.wanted = max(len(turn.replies), 1)
        if turn.reply is None:
            turn.reply = Reply()
            turn.reply.stage = Stage.INTERRUPTED
            turn.replies.append(turn.reply)
    conversation = Conversation(chat, system=chat.system, thinking=chat.thinking, every=list(turns.values()))
    first: Turn | None = None
    before: Turn | None = None
    for message in messages:
        if message.role != "user":
            continue
        turn, last = turns[message.id], before
        before = turn
        if last is None or message.parent is None:
            shown, first = first, turn if first is None or message.chosen else first
        else:
            parent, reply = of_reply.get(message.parent or 0) or (turns.get(message.parent or 0) or last, None)
            reply = reply or parent.reply
            shown = parent.following.get(reply)
            if shown is None or message.chosen:
                parent.following[reply] = turn
        if shown is not None:
            turn.versions = shown.versions
            turn.versions.append(turn)
    if first is not None:
        conversation.turns = [first]
        conversation.show_version(first, first.version)
    conversation.tell_models()
    return conversation


def _add_reply(turn: Turn, message: StoredMessage, read: Callable[[int], Sequence[str]] | None) -> Reply:
    lines = (lambda: message.events) if read is None else partial(read, message.id)
    reply = Reply.stored(message.content, message.finish_reason, lines)
    reply.message_id, reply.model = message.id, message.model
    turn.replies.append(reply)
    if turn.reply is None or message.chosen:
        turn.reply = reply
    return reply
