"""The user's own prompts for distillation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specchat.engine.errors import EngineError
from specchat.engine.request import Message, Request
from specchat.engine.sequence.prompt import encode


def read_prompts(file: Path, tokenizer: Any, longest: int) -> list[list[int]]:
    """Read prompts from a text file, one per line, as token ids ready for a reply.

    Args:
        file: UTF-8; empty lines are skipped.
        tokenizer: of the target.
        longest: in tokens; longer prompts are skipped, as they leave no room for a reply.

    Raises:
        EngineError: the file cannot be read, or no prompt is short enough.
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
