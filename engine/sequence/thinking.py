"""Thinking: a model's markers around it, and how prompts contain it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specchat.engine.events import Thinking
from specchat.engine.request import Message
from specchat.engine.sequence.template import default_template

MARKERS = (
    ("<think>", "</think>"),  # Qwen3, DeepSeek-R1, SmolLM3, GLM-4.5 and most others
    ("[THINK]", "[/THINK]"),  # Magistral
    ("<seed:think>", "</seed:think>"),  # Seed-OSS
    ("<thought>", "</thought>"),  # EXAONE Deep
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Command A Reasoning
    ("<|inner_prefix|>", "<|inner_suffix|>"),  # Apertus
    ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),  # gpt-oss
)
"""Opening and closing marker."""
LAST = 32
"""Number of tokens at the end of a prompt that are searched for an opening marker."""
_WORD = re.compile(r"['\"](/[A-Za-z]\w*)['\"]")
_FIELDS = ("reasoning_content", "reasoning", "thinking", "thought", "tool_plan")
"""Fields of a message that templates read the thinking from: of most; of Kimi K3; of gpt-oss; of Apriel; of Cohere."""
_FIELD = re.compile(rf"\b({'|'.join(_FIELDS)})\b")
_PART = re.compile(r"type['\"]?\]?\s*==\s*['\"](thinking|thoughts)['\"]")
"""A template's test for a part of a message that is thinking, of Ministral and of Apertus."""


@dataclass(frozen=True, slots=True)
class Markers:
    """Markers around a model's thinking.

    Args:
        opening: text of the opening marker.
        closing: text of the closing marker.
        special: tokens of the markers that a detokenizer would skip, with their text.
    """

    opening: str
    closing: str
    special: Mapping[int, str]

    def of_prompt(self, ids: Sequence[int], tokenizer: Any) -> Thinking:
        """The markers for a reply to this prompt, which may end with the opening marker, as DeepSeek-R1's does."""
        end = tokenizer.decode(list(ids[-LAST:]), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return Thinking(self.opening, self.closing, end.rstrip().endswith(self.opening))


def find_markers(tokenizer: Any) -> Markers | None:
    """The markers that the chat template or the vocabulary contains; or None.

    Args:
        tokenizer: a fast tokenizer of transformers, or a `PlainTokenizer`.
    """
    vocabulary, template = tokenizer.backend_tokenizer, default_template(tokenizer.chat_template)
    for opening, closing in MARKERS:
        if opening in template or vocabulary.token_to_id(opening) is not None:
            names = ((token, tokenizer.convert_ids_to_tokens(token)) for token in tokenizer.all_special_ids)
            return Markers(
                opening, closing, {token: name for token, name in names if name and name in opening + closing}
            )
    return None


def words_of(chat_template: Any) -> tuple[str, ...]:
    """Slash commands that a template searches the conversation for, such as SmolLM3's `/no_think`."""
    return tuple(dict.fromkeys(_WORD.findall(default_template(chat_template))))


def turn_of(message: Message, chat_template: Any) -> dict[str, object]:
    """A message as argument of a chat template, with its thinking where the template looks for it.

    The template keeps or drops the thinking of earlier replies as its model was trained.
    """
    turn: dict[str, object] = {"role": message.role, "content": message.content}
    if not message.thinking:
        return turn
    template = default_template(chat_template)
    names = dict.fromkeys(_FIELD.findall(template), message.thinking)
    part = None if "reasoning_content" in names else _PART.search(template)
    if part is None:
        return turn | names
    if part[1] == "thinking":
        said = [{"type": "text", "text": message.content}] if message.content else []
        return turn | {"content": [{"type": "thinking", "thinking": message.thinking}, *said]}
    said = [{"type": "response", "text": message.content}] if message.content else []
    return turn | {"content": {"blocks": [{"type": "thoughts", "text": message.thinking}, *said]}}
