"""Prompts: from a request to token ids by the model's chat template, and truncation to the context."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from specchat.engine.errors import EngineError, check
from specchat.engine.message import Message, PartKind
from specchat.engine.request import KEEP_ENDS, STOP, Request
from specchat.engine.sequence.chat_prompt import encode_chat

REPLY_SHARE = 4
"""Room is reserved for `max_tokens`, but at most the context divided by this."""
_ROLES = ("User", "Assistant", "System")
"""Labels of the plain template."""
Length = Callable[[tuple[Message, ...]], int]
"""Number of prompt tokens of some messages."""


@dataclass(frozen=True, slots=True)
class FittedPrompt:
    """A prompt for the model."""

    ids: list[int]
    """Token ids."""
    left_out: tuple[int, ...] = ()
    """Indices in `Request.messages` of the messages that were left out."""


def encode(request: Request, tokenizer: Any) -> list[int]:
    """Token ids of a request's prompt.

    Args:
        tokenizer: a `PlainTokenizer`.

    Raises:
        EngineError: the chat template refuses the conversation, or the prompt is empty.
    """
    if request.prompt_ids:
        return list(request.prompt_ids)
    if request.prompt is not None:
        ids = tokenizer.encode(request.prompt)
    elif tokenizer.chat_template:
        ids = _with_bos(encode_chat(request, tokenizer), tokenizer)
    else:
        ids = tokenizer.encode(plain_template(request.messages))
    check(ids, "the prompt is empty: ask something")
    return list(ids)


def _with_bos(ids: list[int], tokenizer: Any) -> list[int]:
    """The ids of a chat prompt after the BOS token, where the file of the model asks for one and no template wrote it.

    A template of a folder decides alone, as in transformers.
    """
    bos = getattr(tokenizer, "begins", None)
    return ids if bos is None or ids[:1] == [bos] else [bos, *ids]


def check_tokens(ids: Sequence[int], tokenizer: Any, size: int) -> None:
    """Check that a model of V = `size` tokens has all tokens of a prompt: a vocabulary may have more than its model.

    Raises:
        EngineError: it lacks one.
    """
    if (largest := max(ids, default=0)) >= size:
        name = tokenizer.convert_ids_to_tokens(largest)
        raise EngineError(
            f"the prompt holds the token {name!r} ({largest}), and the model has {size} tokens: take it out"
        )


def check_conversation(request: Request, name: str, *, conversations: bool) -> None:
    """Check that a request to the model `name` is a single text, unless the model holds conversations.

    Raises:
        EngineError: it is a conversation.
    """
    if request.messages and not conversations:
        raise EngineError(
            f"{name} reads one text and holds no conversation: give it a prompt, as specchat ask and /v1/completions "
            "do, or choose a model that continues text"
        )


def encode_reply(request: Request, tokenizer: Any) -> list[int]:
    """Token ids of the beginning of the reply that the request prescribes."""
    text = tokenizer.encode(request.reply_text, add_special_tokens=False) if request.reply_text else []
    return [*request.reply_ids, *text]


def plain_template(messages: Sequence[Message]) -> str:
    """Prompt text for a model without a chat template: one labelled line per turn. A last reply is continued."""
    lines = [f"{message.role.capitalize()}: {message.content}" for message in messages]
    return "\n".join(lines if messages[-1].role == "assistant" else [*lines, "Assistant:"])


def stops_of(request: Request, tokenizer: Any) -> tuple[str, ...]:
    """Texts that end the reply: the request's stop strings, and the labels of the plain template where that is used."""
    plain = bool(request.messages) and not tokenizer.chat_template
    return (*request.stop, *(f"\n{role}:" for role in _ROLES if plain))


def fit(request: Request, tokenizer: Any, given: int, context: int) -> FittedPrompt:
    """Encode a prompt, and leave out turns until it fits, as `Request.when_full` allows. It may still be too long.

    Args:
        tokenizer: a `PlainTokenizer`.
        given: number of tokens that the reply begins with.
        context: maximum number of tokens of prompt and reply together.

    Raises:
        EngineError: the chat template refuses the conversation, or the prompt is empty.
    """
    encoded: dict[tuple[Message, ...], list[int]] = {}

    def length(messages: tuple[Message, ...]) -> int:
        encoded[messages] = encode(replace(request, messages=messages), tokenizer)
        return len(encoded[messages])

    gone = left_out(request, length, given, context)
    kept = without(request.messages, gone)
    if kept not in encoded:
        length(kept)
    return FittedPrompt(encoded[kept], tuple(gone))


def check_length(prompt: int, context: int, *, of_chat: bool = False) -> None:
    """Check that a prompt of `prompt` tokens leaves room for a reply.

    Args:
        of_chat: whether earlier turns of a chat could be left out.

    Raises:
        EngineError: it does not.
    """
    if prompt >= context:
        turns = "let the engine leave out earlier turns (alt+c: drop-oldest or keep-ends), " if of_chat else ""
        raise EngineError(
            f"the prompt has {prompt} tokens and the context holds {context}: "
            f"shorten it, {turns}start a new chat or raise --context"
        )


def left_out(request: Request, length: Length, given: int, context: int) -> range:
    """Indices in `Request.messages` of the turns to leave out; empty if all fit or none may be left out.

    A turn is a user message without results of calls, and the messages up to the next one. Messages before the first
    turn, and the last turn, always stay. The tokens left out are rounded up to a multiple of half the room, if at least
    that many can be left out: the prompts of the next messages then begin as this one does, and what it has in the
    cache is reused. With n turns, `length` is called about log n times.
    """
    turns = _earlier_turns(request.messages)[request.when_full == KEEP_ENDS :]
    room = context - given - min(request.max_tokens, context // REPLY_SHARE)
    if request.when_full == STOP or not turns or (whole := length(request.messages)) <= room:
        return range(0)

    def first(count: int) -> range:
        return range(turns[0].start, turns[count - 1].stop)  # turns follow each other without a gap

    def left(count: int) -> int:
        return length(without(request.messages, first(count)))

    step = max(room // 2, 1)
    most = whole - -(-(whole - room) // step) * step
    if left(len(turns)) > most:
        most = room
    return first(1 + bisect_left(range(1, len(turns)), True, key=lambda count: left(count) <= most))


def without(messages: tuple[Message, ...], gone: range) -> tuple[Message, ...]:
    """The messages except those at these indices."""
    return messages[: gone.start] + messages[gone.stop :]


def _begins_turn(message: Message) -> bool:
    """Whether a turn begins here: results of calls stay with the calls before them."""
    return message.role == "user" and not message.parts_of(PartKind.RESULT)


def _earlier_turns(messages: Sequence[Message]) -> list[range]:
    """Indices of the messages of each turn except the last."""
    starts = [place for place, message in enumerate(messages) if _begins_turn(message)]
    return [range(start, end) for start, end in pairwise(starts)]
