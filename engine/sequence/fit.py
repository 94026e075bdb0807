"""Prompts that do not fit into the context: which of the earlier turns are left out."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from specchat.engine.request import KEEP_ENDS, STOP, Message, Request
from specchat.engine.sequence.prompt import encode

REPLY_SHARE = 4
"""Room is made for the longest reply, but for no more than the context divided by this."""


@dataclass(frozen=True, slots=True)
class FittedPrompt:
    """A prompt as the model reads it."""

    ids: list[int]
    """Its tokens."""
    left_out: tuple[int, ...] = ()
    """Places in `Request.messages` of those that it is without."""


def fit(request: Request, tokenizer: Any, given: int, context: int) -> FittedPrompt:
    """The prompt, without as many whole turns as it takes to make it fit where the request allows that.

    A turn is a message of the user and what follows it up to the next one. What comes before the first turn, and the
    last turn, always stay. The result may still be too long.

    Args:
        request: Says with `when_full` which turns may go.
        tokenizer: a fast tokenizer of transformers.
        given: Tokens that the reply begins with.
        context: Tokens of prompt and reply together.

    Raises:
        EngineError: the chat template refuses the conversation, or the prompt is empty.
    """
    ids = encode(request, tokenizer)
    room = context - given - min(request.max_tokens, context // REPLY_SHARE)
    turns = _earlier_turns(request.messages)[request.when_full == KEEP_ENDS :]
    if request.when_full == STOP or len(ids) <= room or not turns:
        return FittedPrompt(ids)

    def without(count: int) -> FittedPrompt:
        gone = range(turns[0].start, turns[count - 1].stop)  # turns follow each other without a gap
        kept = request.messages[: gone.start] + request.messages[gone.stop :]
        return FittedPrompt(encode(replace(request, messages=kept), tokenizer), tuple(gone))

    least = 1 + bisect_left(range(1, len(turns)), True, key=lambda count: len(without(count).ids) <= room)
    return without(least)


def _earlier_turns(messages: Sequence[Message]) -> list[range]:
    """The places of the messages of each turn but the last."""
    starts = [place for place, message in enumerate(messages) if message.role == "user"]
    return [range(start, end) for start, end in pairwise(starts)]
