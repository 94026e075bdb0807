"""Requests for replies in a conversation, made of its messages and of the settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from uuid import uuid4

from specchat.app.chat.conversation import Conversation, Turn
from specchat.app.chat.reply import Reply
from specchat.app.settings.settings import Settings
from specchat.engine import Message, Request, Round


def request_for(settings: Settings, conversation: Conversation, turn: Turn) -> Request:
    """A request for a reply to a prompt of the path."""
    settings = settings.with_thinking(conversation.thinking)
    return settings.request(uuid4().hex, conversation.messages(turn))


def candidate_requests(settings: Settings, conversation: Conversation, turn: Turn, detail: int) -> list[Request]:
    """One request for each reply that a prompt wants; `detail` is the top-k that its rounds record.

    Without a seed the engine draws one for each; a given one counts up.
    """
    seeds = [None if settings.seed is None else settings.seed + number for number in range(turn.wanted)]
    requests = [request_for(replace(settings, seed=seed), conversation, turn) for seed in seeds]
    return [replace(request, detail=detail) for request in requests] if detail else requests


def told(conversation: Conversation, turn: Turn, reply: Reply) -> tuple[Message, ...]:
    """The messages that the model was told when it wrote this reply to a prompt of the path."""
    messages = enumerate(conversation.messages(turn))
    return tuple(message for place, message in messages if place not in reply.left_out)


def going_on(request: Request, rounds: Sequence[Round], chosen: Sequence[int], text: str) -> Request:
    """A request whose reply begins with the tokens of these rounds, then these tokens, then this text."""
    emitted = tuple(token for record in rounds for token in record.emitted)
    return replace(request, reply_ids=(*emitted, *chosen), reply_text=text)
