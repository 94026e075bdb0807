"""Prompts that do not fit into the context: which of the earlier turns are left out."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from specchat.engine.errors import EngineError
from specchat.engine.request import KEEP_ENDS, STOP, Message, Request
from specchat.engine.sequence.prompt import encode

REPLY_SHARE = 4
"""Room is made for the longest reply, but for no more than the context divided by this."""
Length = Callable[[tuple[Message, ...]], int]
"""Tokens of messages as a prompt."""


@dataclass(frozen=True, slots=True)
class FittedPrompt:
    """A prompt as the model reads it."""

    ids: list[int]
    """Its tokens."""
    left_out: tuple[int, ...] = ()
    """Places in `Request.messages` of those that it is without."""


def fit(request: Request, tokenizer: Any, given: int, context: int) -> FittedPrompt:
    """The prompt, without as many whole turns as it takes to make it fit where the request allows that.

    The result may still be too long.

    Args:
        request: Says with `when_full` which turns may go.
        tokenizer: a fast tokenizer of transformers.
        given: Tokens that the reply begins with.
        context: Tokens of prompt and reply together.

    Raises:
        EngineError: the chat template refuses the conversation, or the prompt is empty.
    """
    read: dict[tuple[Message, ...], list[int]] = {}

    def length(messages: tuple[Message, ...]) -> int:
        read[messages] = encode(replace(request, messages=messages), tokenizer)
        return len(read[messages])

    gone = left_out(request, length, given, context)
    kept = without(request.messages, gone)
    return FittedPrompt(read[kept] if kept in read else encode(request, tokenizer), tuple(gone))


def check_length(prompt: int, context: int) -> None:
    """Check that a prompt of so many tokens leaves room for a reply.

    Raises:
        EngineError: it does not.
    """
    if prompt >= context:
        raise EngineError(
            f"the prompt has {prompt} tokens and the context holds {context}: "
            "shorten it, start a new chat or raise --context"
        )


def check_source_length(source: int, context: int) -> None:
    """Check that an encoder can read a source of so many tokens.

    Raises:
        EngineError: it cannot.
    """
    if source > context:
        raise EngineError(f"the prompt has {source} tokens and the encoder reads {context} at most: shorten it")


def left_out(request: Request, length: Length, given: int, context: int) -> range:
    """Places in `Request.messages` of the turns that have to go for the rest to fit; none where none may.

    A turn is a message of the user and what follows it up to the next one. What comes before the first turn, and the
    last turn, always stay. With n turns, `length` is called about log n times.
    """
    turns = _earlier_turns(request.messages)[request.when_full == KEEP_ENDS :]
    room = context - given - min(request.max_tokens, context // REPLY_SHARE)
    if request.when_full == STOP or not turns or length(request.messages) <= room:
        return range(0)

    def first(count: int) -> range:
        return range(turns[0].start, turns[count - 1].stop)  # turns follow each other without a gap

    def fits(count: int) -> bool:
        return length(without(request.messages, first(count))) <= room

    return first(1 + bisect_left(range(1, len(turns)), True, key=fits))


def without(messages: tuple[Message, ...], gone: range) -> tuple[Message, ...]:
    """The messages but for those at these places."""
    return messages[: gone.start] + messages[gone.stop :]


def _earlier_turns(messages: Sequence[Message]) -> list[range]:
    """The places of the messages of each turn but the last."""
    starts = [place for place, message in enumerate(messages) if message.role == "user"]
    return [range(start, end) for start, end in pairwise(starts)]
