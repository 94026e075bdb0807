"""Messages of a conversation, their parts, and tools that the model may call."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from specchat.engine.errors import check

ROLES = ("system", "user", "assistant", "tool")
_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class PartKind(StrEnum):
    """What a part of a message is."""

    TEXT = "text"
    """What is said: to the model, or as its answer."""
    THINKING = "thinking"
    """What the assistant thought before its answer."""
    CALL = "tool_call"
    """A call of a tool; its text is the arguments, as JSON."""
    RESULT = "tool_result"
    """What a call returned."""


@dataclass(frozen=True, slots=True)
class MessagePart:
    """A part of a message."""

    kind: PartKind
    """What it is."""
    text: str
    """Its text."""
    name: str = ""
    """Name of the tool, of a call and its result; empty for other kinds."""
    call_id: str = ""
    """Names the call that a result belongs to; empty for other kinds."""


def message_parts(text: str, thinking: str = "") -> tuple[MessagePart, ...]:
    """The parts of a message with this text, which follows its thinking; an empty one is left out."""
    both = MessagePart(PartKind.THINKING, thinking), MessagePart(PartKind.TEXT, text)
    return tuple(part for part in both if part.text)


def text_of(parts: Iterable[MessagePart], kind: PartKind) -> str:
    """The text of all parts of one kind."""
    return "".join(part.text for part in parts if part.kind is kind)


@dataclass(frozen=True, slots=True, init=False)
class Message:
    """One message of a conversation.

    Raises:
        EngineError: `role` is not one of `ROLES`.
    """

    role: str
    """One of `ROLES`."""
    parts: tuple[MessagePart, ...] = ()
    """What it consists of, in order."""

    def __init__(self, role: str, content: str = "", thinking: str = "", parts: Iterable[MessagePart] = ()) -> None:
        """Create a message of these parts, or of one text and what was thought before it."""
        check(role in ROLES, f"role {role!r} is not known: choose one of {', '.join(ROLES)}")
        object.__setattr__(self, "role", role)
        object.__setattr__(self, "parts", message_parts(content, thinking) or tuple(parts))

    @property
    def content(self) -> str:
        """Its text."""
        return text_of(self.parts, PartKind.TEXT)

    @property
    def thinking(self) -> str:
        """What the assistant thought before; the chat template decides whether the model reads it again."""
        return text_of(self.parts, PartKind.THINKING)

    def parts_of(self, kind: PartKind) -> tuple[MessagePart, ...]:
        """Its parts of one kind."""
        return tuple(part for part in self.parts if part.kind is kind)


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call.

    Raises:
        EngineError: the name is invalid, or the parameters are no JSON object.
    """

    name: str
    """Letters, digits, _ and -, at most 64."""
    description: str = ""
    """What it does, for the model."""
    parameters: str = "{}"
    """JSON schema of its arguments."""
    strict: bool = False
    """Whether arguments must match the schema."""

    def __post_init__(self) -> None:
        told = f"the tool name {self.name!a:.80} is invalid: use 1 to 64 letters, digits, _ and -"
        check(_TOOL_NAME.fullmatch(self.name), told, "tools")
        try:
            known = isinstance(json.loads(self.parameters), dict)
        except ValueError:
            known = False
        check(known, f"the parameters of the tool {self.name} are no JSON schema: give an object", "tools")
