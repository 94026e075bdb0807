"""Prompts: from a request to token ids, through the model's chat template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specchat.engine.errors import EngineError
from specchat.engine.request import Message, Request
from specchat.engine.sequence.thinking import switch_of, turn_of


def encode(request: Request, tokenizer: Any) -> list[int]:
    """Token ids of a request's prompt.

    Args:
        tokenizer: a fast tokenizer of transformers.

    Raises:
        EngineError: the chat template refuses the conversation, or the prompt is empty.
    """
    if request.prompt_ids:
        return list(request.prompt_ids)
    if request.prompt is not None:
        ids = tokenizer.encode(request.prompt)
    elif tokenizer.chat_template:
        ids = tokenizer.encode(_render(request, tokenizer), add_special_tokens=False)
    else:
        ids = tokenizer.encode(plain_template(request.messages))
    if not ids:
        raise EngineError("the prompt is empty: ask something")
    return list(ids)


def check_source(request: Request, name: str) -> None:
    """Check that a request has what an encoder-decoder of this name reads.

    Raises:
        EngineError: it is a conversation.
    """
    if request.messages:
        raise EngineError(
            f"{name} reads one text and holds no conversation: give it a prompt, as specchat ask and /v1/completions "
            "do, or choose a model that continues text"
        )


def encode_reply(request: Request, tokenizer: Any) -> list[int]:
    """Token ids that the reply begins with, as the request gives them."""
    text = tokenizer.encode(request.reply_text, add_special_tokens=False) if request.reply_text else []
    return [*request.reply_ids, *text]


def plain_template(messages: Sequence[Message]) -> str:
    """Prompt text for a model without a chat template: one labelled line per turn."""
    lines = [f"{message.role.capitalize()}: {message.content}" for message in messages]
    return "\n".join([*lines, "Assistant:"])


def _render(request: Request, tokenizer: Any) -> str:
    template = tokenizer.chat_template
    turns = [turn_of(message, template) for message in request.messages]
    switch = None if request.thinking is None else switch_of(template)
    switches = {switch: request.thinking} if switch else {}
    try:
        return str(tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False, **switches))
    except Exception as error:  # a template is a program of the model's: it may raise anything
        raise EngineError(f"the model's chat template refuses this conversation: {error}") from None
