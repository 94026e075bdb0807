"""Token ids that a chat template puts around the turns of a conversation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specchat.engine.errors import EngineError

_MARKS = ("<<first>>", "<<second>>", "<<third>>")


@dataclass(frozen=True, slots=True)
class Turns:
    """Fixed parts of a conversation as token ids; the target writes what is between them."""

    opening: tuple[int, ...]
    """Up to the first user turn."""
    answer: tuple[int, ...]
    """From the end of a user turn to the beginning of the reply."""
    question: tuple[int, ...]
    """From the end of a reply to the beginning of the next user turn."""

    @classmethod
    def of(cls, tokenizer: Any, name: str) -> Turns:
        """Derive the fixed parts from the tokenizer's chat template.

        Args:
            tokenizer: a fast tokenizer of transformers.
            name: display name of the target, for the error.

        Raises:
            EngineError: there is no chat template, or it changes the text of turns.
        """
        if not tokenizer.chat_template:
            raise EngineError(
                f"{name} has no chat template, so no conversations can be made with it: give prompts with --prompts, "
                "or choose a target made for chat"
            )
        first, second, third = _MARKS
        turns = [("user", first), ("assistant", second), ("user", third)]
        messages = [{"role": role, "content": text} for role, text in turns]
        try:
            text = str(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))
            opening, rest = text.split(first)
            answer, rest = rest.split(second)
            question, _ = rest.split(third)
        except Exception as error:  # a template is a program of the model's: it may raise anything
            raise EngineError(f"the chat template of {name} cannot be used for distilling ({error})") from None
        parts = (tuple(tokenizer.encode(part, add_special_tokens=False)) for part in (opening, answer, question))
        return cls(*parts)
