"""How much of the context is used with the text in the composer: earlier messages, the prompt, and its attachments."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specchat.app.chat.attachments import as_block, content_of
from specchat.app.chat.conversation import Conversation
from specchat.app.storage.attachments import FILE, Attachment
from specchat.engine import Counted, Message, Tool

Count = Callable[[tuple[Message, ...], str, tuple[Tool, ...]], None]
"""Requests the number of tokens of messages and tools; a `Counted` with this key may answer."""
_HISTORY, _WHOLE, _EMPTY, _ONE = "history ", "whole ", "empty", "one "


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of the context by the model's own tokenizer. The parts add up to `total`."""

    history: int
    """System prompt and earlier turns, with the chat template around a prompt."""
    prompt: int
    """The text in the composer."""
    attached: int
    """Files and pastes."""
    context: int
    """Limit of prompt and reply together."""

    @property
    def total(self) -> int:
        """Tokens of the whole prompt."""
        return self.history + self.prompt + self.attached

    @property
    def room(self) -> int:
        """Tokens that remain for the reply; negative if the prompt does not fit."""
        return self.context - self.total


class ContextMeter:
    """Requests counts and combines the answers.

    Args:
        count: Requests a count.
        take_tokens: Called with an attachment and its number of tokens.
    """

    def __init__(self, count: Count, take_tokens: Callable[[Attachment, int], None]) -> None:
        self._count, self._take_tokens = count, take_tokens
        self.context = 0
        """Limit of a chat in tokens; 0 while unknown."""
        self._requested = 0
        """Number of the latest request for everything; answers to older ones are ignored."""
        self._requested_history = 0
        self._told: tuple[Message | Tool, ...] = ()
        """The history of the latest request for it, and the tools."""
        self._history: int | None = None
        self._whole: int | None = None
        """Tokens with the text in the composer; None while that is empty or was never counted."""
        self._empty: int | None = None
        """Tokens of an empty prompt."""
        self._tokens: dict[str, int | None] = {}
        """Tokens of each attachment of the prompt."""
        self._ones: dict[str, Attachment] = {}
        """Attachments that are being counted, by key."""
        self._content = ""
        """Prompt with attachments of the latest request."""
        self.counted = ""
        """Prompt with attachments that `usage` is of."""

    def begin(self, context: int) -> None:
        """Discard all counts: another model, with another tokenizer, is loaded."""
        self.context = context
        self._history = self._whole = self._empty = None
        self._ones, self.counted = {}, ""

    @property
    def usage(self) -> Usage | None:
        """The usage by the latest counts; None before the history has been counted."""
        if self._history is None or not self.context:
            return None
        if self._whole is None:
            return Usage(self._history, 0, 0, self.context)
        new = max(self._whole - self._history, 0)
        attached = min(sum(tokens or 0 for tokens in self._tokens.values()), new)
        return Usage(self._whole - new, new - attached, attached, self.context)

    def ask(self, conversation: Conversation, prompt: str, attachments: Sequence[Attachment]) -> None:
        """Request the counts for this prompt at the end of the conversation."""
        self._requested += 1
        if self._empty is None:
            self._count((Message("user", ""),), _EMPTY, ())
        history, tools = conversation.messages_with(""), conversation.tools
        if (*history, *tools) != self._told or self._history is None:
            self._told, self._requested_history = (*history, *tools), self._requested
            self._count(history, f"{_HISTORY}{self._requested}", tools)
        self._tokens = {each.name: each.tokens for each in attachments}
        for each in (*attachments, *(one for earlier in conversation.prompts for one in earlier.attachments)):
            if each.tokens is None and each not in self._ones.values():
                key = f"{_ONE}{self._requested} {len(self._ones)}"
                self._ones[key] = each
                self._count((Message("user", as_block(each) if each.kind == FILE else each.text),), key, ())
        self._content = content_of(prompt, attachments)
        if prompt.strip():
            self._count(conversation.messages_with(self._content), f"{_WHOLE}{self._requested}", tools)
        else:
            self._whole, self.counted = None, ""

    def take(self, counted: Counted) -> bool:
        """Add an answer; return whether it changes the usage."""
        if counted.key == f"{_WHOLE}{self._requested}":
            self._whole, self.counted = counted.tokens, self._content
        elif counted.key == f"{_HISTORY}{self._requested_history}":
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
