"""Thinking of earlier replies in prompts, and words that chat templates search a conversation for."""

from __future__ import annotations

import re
from typing import Any

from specchat.engine.request import Message
from specchat.engine.sequence.template import default_template

_WORD = re.compile(r"['\"](/[A-Za-z]\w*)['\"]")
_FIELDS = ("reasoning_content", "reasoning", "thinking", "thought", "tool_plan")
"""Fields of a message that templates read the thinking from: of most; of Kimi K3; of gpt-oss; of Apriel; of Cohere."""
_FIELD = re.compile(rf"\b({'|'.join(_FIELDS)})\b")
_PART = re.compile(r"type['\"]?\]?\s*==\s*['\"](thinking|thoughts)['\"]")
"""A template's test for a part of a message that is thinking, of Ministral and of Apertus."""


def words_of(chat_template: Any) -> tuple[str, ...]:
    """Slash commands that a template searches the conversation for, such as SmolLM3's `/no_think`."""
    return tuple(dict.fromkeys(_WORD.findall(default_template(chat_template))))


def turn_of(message: Message, chat_template: Any) -> dict[str, object]:
    """A message as argument of a chat template, with its thinking where the template looks for it.

    The template keeps or drops the thinking of earlier replies as its model was trained.
    """
    turn: dict[str, object] = {"role": message.role, "content": message.content}
    if not message.thinking:
        return turn
    template = default_template(chat_template)
    names = dict.fromkeys(_FIELD.findall(template), message.thinking)
    part = None if "reasoning_content" in names else _PART.search(template)
    if part is None:
        return turn | names
    if part[1] == "thinking":
        said = [{"type": "text", "text": message.content}] if message.content else []
        return turn | {"content": [{"type": "thinking", "thinking": message.thinking}, *said]}
    said = [{"type": "response", "text": message.content}] if message.content else []
    return turn | {"content": {"blocks": [{"type": "thoughts", "text": message.thinking}, *said]}}
