"""The texts that an evaluation uses, of those that files hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from specchat.engine.errors import EngineError
from specchat.engine.tools.evaluate.options import EvaluateOptions
from specchat.engine.tools.evaluate.texts import Text, TextFiles


def select(options: EvaluateOptions, tokenizer: Any, context: int) -> tuple[tuple[Text, ...], tuple[str, ...]]:
    """As many texts as are asked for, each as long as is asked for and as the context goes.

    Args:
        options: of the command.
        tokenizer: a fast tokenizer of transformers, the target's.
        context: most tokens of a text, its prompt included.

    Returns:
        The texts, and what could not be used, a sentence each.

    Raises:
        EngineError: a file cannot be read, or there is nothing in them to use.
    """
    files = TextFiles(tokenizer)
    texts = [_cut(text, options.max_tokens, context) for text in files.read(options.files)]
    texts = [text for text in texts if text.reply][: options.limit]
    if not texts:
        raise EngineError("; ".join(["there is no text to evaluate on", *files.problems[:3]]))
    return tuple(texts), tuple(files.problems)


def _cut(text: Text, most: int, context: int) -> Text:
    """The text up to so many tokens of its reply, and as far as the context goes."""
    room = max(context - len(text.prompt) - 1, 0)
    return replace(text, reply=text.reply[: min(most, room)])
