"""Thinking: which markers a model puts around it, which switch its chat template has, and what prompts say to it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from specchat.engine.events import Thinking
from specchat.engine.request import Message

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
SWITCHES = ("enable_thinking", "thinking")
"""What templates call their switch: Qwen3, SmolLM3, GLM-4.5; DeepSeek-V3.1, Granite 3.2."""
LAST = 32
"""Tokens at the end of a prompt that are looked through for an opening marker."""
_TAG = re.compile(r"\{[%{](.*?)[%}]\}", re.DOTALL)
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_WORD = re.compile(r"['\"](/[A-Za-z]\w*)['\"]")


@dataclass(frozen=True, slots=True)
class Markers:
    """What stands around a model's thinking.

    Args:
        opening: text of the opening marker.
        closing: text of the closing marker.
        special: those tokens of them that a detokenizer would leave out, with their text.
    """

    opening: str
    closing: str
    special: Mapping[int, str]

    def of_prompt(self, ids: Sequence[int], tokenizer: Any) -> Thinking:
        """The markers of a reply to this prompt, which may have opened the block itself, as DeepSeek-R1's does."""
        end = tokenizer.decode(list(ids[-LAST:]), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return Thinking(self.opening, self.closing, end.rstrip().endswith(self.opening))


def find_markers(tokenizer: Any) -> Markers | None:
    """The markers that the chat template names or the vocabulary has as tokens; None for a model without.

    Args:
        tokenizer: a fast tokenizer of transformers, or a `PlainTokenizer`.
    """
    vocabulary, template = tokenizer.backend_tokenizer, _text(tokenizer.chat_template)
    for opening, closing in MARKERS:
        if opening in template or vocabulary.token_to_id(opening) is not None:
            names = ((token, tokenizer.convert_ids_to_tokens(token)) for token in tokenizer.all_special_ids)
            return Markers(
                opening, closing, {token: name for token, name in names if name and name in opening + closing}
            )
    return None


def switch_of(chat_template: Any) -> str | None:
    """The variable of a template that switches thinking on and off; None where there is none."""
    return _switch(_text(chat_template))


def words_of(chat_template: Any) -> tuple[str, ...]:
    """Words with a slash before them that a template looks for in a conversation, as SmolLM3's does for `/no_think`."""
    return tuple(dict.fromkeys(_WORD.findall(_text(chat_template))))


def turn_of(message: Message, chat_template: Any) -> dict[str, str]:
    """A message as a chat template takes it.

    Templates cut the thinking out of earlier replies as their models were trained to have it. gpt-oss's does so too,
    but wants it apart from the reply.
    """
    turn = {"role": message.role, "content": message.content}
    opening, closing = MARKERS[-1]
    thought, found, answer = message.content.removeprefix(opening).partition(closing)
    if message.role == "assistant" and found and "message.thinking" in _text(chat_template):
        turn |= {"content": answer, "thinking": thought}
    return turn


@lru_cache(maxsize=8)
def _switch(template: str) -> str | None:
    code = " ".join(_QUOTED.sub("", tag) for tag in _TAG.findall(template))
    return next((name for name in SWITCHES if re.search(rf"(?<![.\w]){name}\b", code)), None)


def _text(chat_template: Any) -> str:
    """The template itself, of those that a model may have by name."""
    return str((chat_template.get("default") if isinstance(chat_template, dict) else chat_template) or "")
