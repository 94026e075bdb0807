"""Prompts of the user's own to distil on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.errors import EngineError
from engine.request import Message, Request
from engine.text import encode


def read_prompts(file: Path, tokenizer: Any, longest: int) -> list[list[int]]:
    """The prompts of a text file, one per line, as token ids ready for a reply.

    Args:
        file: UTF-8; empty lines are passed over.
        tokenizer: of the target.
        longest: tokens; longer prompts are passed over, as they leave no room for a reply.

    Raises:
        EngineError: the file cannot be read, or has no prompt that is short enough.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise EngineError(f"{file} cannot be read ({error}): give a text file with one prompt per line") from None
    encoded = [encode(Request("", messages=(Message("user", line),)), tokenizer) for line in lines if line.strip()]
    fitting = [prompt for prompt in encoded if len(prompt) <= longest]
    if not fitting:
        raise EngineError(f"{file} has no prompt of at most {longest} tokens: give one prompt per line")
    return fitting
