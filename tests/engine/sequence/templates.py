"""Tokenizers with chat templates for tests."""

from typing import Any

from tests.engine.tiny import tiny_tokenizer


def with_template(template: Any, special: tuple[str, ...] = ()) -> Any:
    """A tokenizer of one token per byte, with a chat template and control tokens."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    tokenizer.add_special_tokens({"additional_special_tokens": list(special)})
    return tokenizer
