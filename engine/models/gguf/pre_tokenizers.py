"""Values of `tokenizer.ggml.pre`, from pre_tokenizers.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_STEPS = {name: split["steps"] for split in _TABLES["split"] for name in split["names"].split()}
COMPOSED, WHOLE_WORDS, BEGINS, UNSPLIT = (
    frozenset(_TABLES[table].split()) for table in ("composed", "whole_words", "begins", "unsplit")
)
"""Names with properties of their own; the file says which."""


def pre_tokenizer(name: str) -> Any | None:
    """The pre-tokenizer of the `tokenizers` library for a value of `tokenizer.ggml.pre`; None if it is not known."""
    from tokenizers import Regex, pre_tokenizers

    if (steps := _STEPS.get(name)) is None:
        return None
    known: dict[str, Callable[[], Any]] = {
        "punctuation": lambda: pre_tokenizers.Punctuation("contiguous"),
        "digits": lambda: pre_tokenizers.Digits(individual_digits=True),
        "numbers": lambda: pre_tokenizers.Digits(individual_digits=False),
        "gpt-2": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    }
    made = [known[step]() if step in known else pre_tokenizers.Split(Regex(step), "isolated") for step in steps]
    if "gpt-2" not in steps:
        made.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    return pre_tokenizers.Sequence(made)
