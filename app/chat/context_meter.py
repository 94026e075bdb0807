"""How full the context would be with what is typed: what was said before, the prompt, and what is attached to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specchat.app.chat.attachments import as_block, content_of
from specchat.app.chat.conversation import Conversation
from specchat.app.storage.attachments import FILE, Attachment
from specchat.engine import Counted, Message

Count = Callable[[tuple[Message, ...], str], None]
"""Asks how many tokens messages take; a `Counted` with the key answers, sooner or later or never."""
_HISTORY, _WHOLE, _EMPTY, _ONE = "history ", "whole ", "empty", "one "


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of the context, as the model's own tokenizer counts them. The parts add up to `total`."""

    history: int
    """System prompt and earlier turns, with what the chat template puts around a prompt."""
    prompt: int
    """What is typed."""
    attached: int
    """Files and pastes."""
    context: int
    """All that prompt and reply may take together."""

    @property
    def total(self) -> int:
        """What the model would be told."""
        return self.history + self.prompt + self.attached

    @property
    def room(self) -> int:
        """What is left for the reply; below 0 where the prompt does not fit."""
        return self.context - self.total


class ContextMeter:
    """Asks for counts, and puts the answers together.

    Args:
        count: Asks.
        take_tokens: Gets an attachment and its tokens.
    """

    def __init__(self, count: Count, take_tokens: Callable[[Attachment, int], None]) -> None:
        self._count = count
        self._take_tokens = take_tokens
        self.context = 0
        """Tokens a chat may have in all; 0 while that is not known."""
        self._asked = 0
        """Number of the latest question about everything; answers to older ones come too late."""
        self._asked_history = 0
        self._told: tuple[Message, ...] = ()
        """The history that was asked about."""
        self._history: int | None = None
        self._whole: int | None = None
        """Tokens with what is typed; None while nothing is, or it was never counted."""
        self._empty: int | None = None
        """Tokens of a prompt that says nothing."""
        self._tokens: dict[str, int | None] = {}
        """Those of each attachment of the prompt."""
        self._ones: dict[str, Attachment] = {}
        """Attachments that were asked about, by key."""
        self._content = ""
        """What was asked about last."""
        self.counted = ""
        """The prompt, with what is attached, that `usage` is of."""

    def begin(self, context: int) -> None:
        """Another model is loaded: what was counted before was counted by another tokenizer."""
        self.context = context
        self._history = self._whole = self._empty = None
        self._ones, self.counted = {}, ""

    @property
    def usage(self) -> Usage | None:
        """As far as it is known; None while it is not."""
        if self._history is None or not self.context:
            return None
        if self._whole is None:
            return Usage(self._history, 0, 0, self.context)
        behind = max(self._whole - self._history, 0)
        attached = min(sum(tokens or 0 for tokens in self._tokens.values()), behind)
        return Usage(self._whole - behind, behind - attached, attached, self.context)

    def ask(self, conversation: Conversation, prompt: str, attachments: Sequence[Attachment]) -> None:
        """Ask what this prompt would take behind the conversation."""
        self._asked += 1
        if self._empty is None:
            self._count((Message("user", ""),), _EMPTY)
        history = conversation.messages_with("")
        if history != self._told or self._history is None:
            self._told, self._asked_history = history, self._asked
            self._count(history, f"{_HISTORY}{self._asked}")
        self._tokens = {each.name: each.tokens for each in attachments}
        for each in (*attachments, *(one for turn in conversation.turns for one in turn.attachments)):
            if each.tokens is None and each not in self._ones.values():
                key = f"{_ONE}{self._asked} {len(self._ones)}"
                self._ones[key] = each
                self._count((Message("user", as_block(each) if each.kind == FILE else each.text),), key)
        self._content = content_of(prompt, attachments)
        if prompt.strip():
            self._count(conversation.messages_with(self._content), f"{_WHOLE}{self._asked}")
        else:
            self._whole, self.counted = None, ""

    def take(self, counted: Counted) -> bool:
        """Take in an answer; whether it changes what is shown."""
        if counted.key == f"{_WHOLE}{self._asked}":
            self._whole, self.counted = counted.tokens, self._content
        elif counted.key == f"{_HISTORY}{self._asked_history}":
            self._history = counted.tokens
        elif counted.key == _EMPTY:
            self._empty = counted.tokens
        elif counted.key in self._ones and self._empty is not None:
            one, tokens = self._ones.pop(counted.key), max(counted.tokens - self._empty, 0)
            self._take_tokens(one, tokens)
            if one.name in self._tokens:
                self._tokens[one.name] = tokens
        else:
            return False
        return True
