"""Prompt of a conversation: the messages in the form that the model's chat template accepts, rendered and encoded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from typing import Any

from specchat.engine.errors import EngineError, first_line
from specchat.engine.request import Message, MessagePart, PartKind, Request
from specchat.engine.sequence.marks import encode_separated, separate
from specchat.engine.sequence.template import render
from specchat.engine.sequence.template_traits import as_parts, thinking_variables, traits_of, turn_of

_END = "\ufdd1"
"""A noncharacter of Unicode, put at the end of a message that the reply continues."""
_GAP = "\n\n"
"""Text between messages that become one."""
_HELLO = Message("user", "Hello")


def encode_chat(request: Request, tokenizer: Any) -> list[int]:
    """Token ids of a conversation. A last message of the assistant is continued.

    Raises:
        EngineError: the chat template refuses the conversation.
    """
    return encode_separated(_render(request, tokenizer), tokenizer)


def _render(request: Request, tokenizer: Any) -> str:
    variables = thinking_variables(tokenizer, request.thinking)
    refusals: list[Exception] = []
    for messages, tools in _accepted_forms(request.messages, system=traits_of(tokenizer).system):
        try:
            return _text(messages, tokenizer, {**variables, **tools})
        except EngineError:
            raise
        except Exception as error:  # a template may raise anything
            refusals.append(error)
    *before, last = request.messages
    if before and last.role == "assistant" and last.content and not last.thinking:  # a template may end with questions
        begun: str = separate(last.content, tokenizer)
        with suppress(EngineError):
            return _render(replace(request, messages=tuple(before)), tokenizer) + begun
    reason = first_line(refusals[0]) if refusals else "it is empty"
    raise EngineError(_sentence(request.messages, tokenizer, reason))


def _text(messages: Sequence[Message], tokenizer: Any, variables: Mapping[str, object]) -> str:
    """The prompt up to where the reply begins or continues."""
    *before, last = messages
    if continues := last.role == "assistant":
        *said, final = last.parts or (MessagePart(PartKind.TEXT, ""),)
        last = Message(last.role, parts=(*said, replace(final, text=final.text + _END)))
    turns = [separate(turn_of(message, tokenizer.chat_template), tokenizer) for message in (*before, last)]
    if traits_of(tokenizer).parts:
        turns = list(map(as_parts, turns))
    text = render(tokenizer, turns, **variables, add_generation_prompt=not continues)
    if not continues:
        return text
    end = text.rfind(_END)
    if end < 0:
        raise ValueError("it leaves out the beginning of the reply")
    return text[:end]


def _accepted_forms(
    messages: tuple[Message, ...], *, system: bool
) -> Iterator[tuple[tuple[Message, ...], Mapping[str, object]]]:
    """The conversation, then forms of it that more templates accept, with the template variables to try.

    Args:
        messages: the conversation.
        system: whether the template writes a system prompt; otherwise it becomes part of the first question.
    """
    first = messages if system else _without_system(messages)
    joined = _joined(first)
    bare = _without_system(joined)
    answers = [message for message in bare[:-1] if message.content.strip()]
    forms = dict.fromkeys((first, joined, _joined(bare), _joined((*answers, *bare[-1:]))))
    no_tools: tuple[dict[str, object], ...] = {}, {"tools": []}
    yield from ((form, tools) for tools in no_tools for form in forms if form)


def _without_system(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The conversation with each system prompt as part of the question after it."""
    result: list[Message] = []
    before: list[str] = []
    for message in messages:
        if message.role == "system":
            before.append(message.content)
        elif message.role == "user" and before:
            result.append(Message("user", _GAP.join([*before, message.content])))
            before = []
        else:
            result.append(message)
    return (*result, *([Message("user", _GAP.join(before))] if before else []))


def _joined(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The conversation without empty messages, with messages of one role that follow each other as one."""
    filled = [message for message in messages if message.content.strip() or message.thinking]
    groups = (list(group) for _, group in groupby(filled, key=lambda message: message.role))
    return tuple(
        Message(
            same[0].role,
            _GAP.join(filter(None, (each.content for each in same))),
            _GAP.join(filter(None, (each.thinking for each in same))),
        )
        for same in groups
    )


def _sentence(messages: Sequence[Message], tokenizer: Any, reason: str) -> str:
    """What the template refuses, and what to do."""

    def accepts(*tried: Message) -> bool:
        try:
            return bool(_text(tried, tokenizer, {}))
        except Exception:  # a template may raise anything
            return False

    spoken = _joined(_without_system(messages))
    if not spoken:
        return f"the model's chat template refuses an empty message ({reason}): write something"
    if not accepts(_HELLO):
        return f"the model's chat template refuses every conversation ({reason}): use another one with --chat-template"
    if spoken[0].role == "assistant" and accepts(_HELLO, *spoken):
        return f"the model's chat template refuses a chat that begins with a reply ({reason}): begin with a prompt"
    return f"the model's chat template refuses this conversation ({reason}): change it, or use another --chat-template"
