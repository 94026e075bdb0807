"""The given parts of conversations, as tensors: which part follows is looked up on the device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from specchat.engine.models.load import LoadedModel
from specchat.engine.tools.distill.text import own_questions, read_turns, scripts_of

QUESTION, ANSWER, OPENING = range(3)
"""Numbers of the parts of the chat template around a turn of the target: the first precedes a later user turn, the
second a reply, the third opens a conversation with a user turn."""
_LONGEST = 300
"""Most tokens of a part."""


class Parts(NamedTuple):
    """Given parts: first the three of the template, then prompts and given user turns, each ready for a reply."""

    tokens: Tensor
    """[parts, tokens], int64, padded."""
    lengths: Tensor
    """[parts], int64."""
    following: Tensor
    """[parts], int64: the next given part of the same conversation, or -1."""
    firsts: Tensor
    """[conversations], int64: the parts that begin a conversation with a given prompt."""
    opens: Tensor
    """[parts], bool: whether a part begins a conversation."""


def parts_of(file: Path, model: LoadedModel, device: torch.device) -> Parts:
    """Encode a file of prompts.

    Args:
        file: as `engine.tools.distill.text.read_turns` reads it.
        model: the target.
        device: of the tensors.

    Raises:
        EngineError: the file cannot be used, or the target has no chat template.
    """
    own = own_questions(model.tokenizer, model.name)
    answer, question = own.follow_ups
    # What follows a turn begins with the end of that turn, which the target has written itself.
    given: list[Sequence[int]] = [question[1:], answer[1:], own.prompt]
    following, firsts = [-1] * 3, []
    for script in scripts_of(read_turns(file), model.tokenizer, model.name, _LONGEST):
        firsts.append(len(given))
        texts = [script.prompt, *(part[1:] for part in script.follow_ups if len(part) <= _LONGEST)]
        following += [len(given) + i + 1 for i in range(len(texts) - 1)] + [-1]
        given += texts
    longest = max(map(len, given))
    padded = [[*part, *[0] * (longest - len(part))] for part in given]
    lengths = [len(part) for part in given]
    begins = {OPENING, *firsts}
    opens = [part in begins for part in range(len(given))]
    return Parts(*(torch.tensor(each, device=device) for each in (padded, lengths, following, firsts, opens)))
