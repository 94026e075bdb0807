"""The user's own prompts for distillation."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from specchat.engine.errors import EngineError
from specchat.engine.request import Message, Request
from specchat.engine.sequence.prompt import encode
from specchat.engine.tools.distill.rollout import Script
from specchat.engine.tools.distill.turns import Turns


def read_prompts(file: Path, tokenizer: Any, name: str, longest: int) -> list[Script]:
    """Read prompts from a file, one per line, as token ids ready for a reply.

    Args:
        file: UTF-8; empty lines are skipped. In a file that ends in .jsonl each line is an object whose `turns` are the
            user's turns of one conversation, asked one after the other; else the line is the prompt.
        tokenizer: of the target.
        name: display name of the target, for errors.
        longest: in tokens; longer prompts are skipped, as they leave no room for a reply.

    Raises:
        EngineError: the file cannot be read, a line is not as it should be, no prompt is short enough, or there are
            conversations and the target has no chat template.
    """
    try:
        lines = file.read_text(encoding="utf-8").split("\n")  # JSON may hold other line separators
    except (OSError, UnicodeDecodeError) as error:
        raise EngineError(f"{file} cannot be read ({error}): give a text file with one prompt per line") from None
    asked = list(_conversations(file, lines)) if file.suffix == ".jsonl" else [[line] for line in lines if line.strip()]
    between = Turns.of(tokenizer, name) if any(len(turns) > 1 for turns in asked) else None
    scripts = [_script(turns, between, tokenizer) for turns in asked]
    fitting = [script for script in scripts if len(script.prompt) <= longest]
    if not fitting:
        raise EngineError(f"{file} has no prompt of at most {longest} tokens: give one prompt per line")
    return fitting


def _conversations(file: Path, lines: Sequence[str]) -> Iterator[list[str]]:
    """The user's turns of each line that is not empty."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            turns = json.loads(line)["turns"]
        except (ValueError, KeyError, TypeError):
            turns = None
        if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) for turn in turns):
            raise EngineError(f'{file}, line {number}: write an object such as {{"turns": ["Hello", "Tell me more"]}}')
        yield turns


def _script(turns: Sequence[str], between: Turns | None, tokenizer: Any) -> Script:
    first, *others = turns
    prompt = encode(Request("", messages=(Message("user", first),)), tokenizer)
    if between is None:
        return Script(tuple(prompt))
    follow_ups = (tuple(tokenizer.encode(turn, add_special_tokens=False)) for turn in others)
    return Script(tuple(prompt), tuple(between.question + turn + between.answer for turn in follow_ups))
