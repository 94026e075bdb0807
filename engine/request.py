"""Requests to the engine: messages, tools, drafting, limits, and what a reply has to follow.

Importing this module does not import llguidance, which checks constraints (`engine.sequence.row_constraint`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from specchat.engine.errors import EngineError, check
from specchat.engine.settings import (
    DRAFTING,
    ONE_OR_MORE,
    SAMPLING,
    Applies,
    Rule,
    Sampling,
    check_settings,
    setting,
    settings_of,
)

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


LONGEST = 200_000
"""Characters of a constraint; llguidance takes a second for a schema of this length."""
FIELD = "constraint"
"""Field that errors name."""


class ConstraintKind(StrEnum):
    """What the text of a constraint is."""

    SCHEMA = "JSON schema"
    REGEX = "regular expression"
    GRAMMAR = "grammar"
    """Lark, or GBNF as in llama.cpp."""
    CALL = "call of a tool"
    """Lark with token ids, which `engine.sequence.call_grammar` makes for a vocabulary; no request has it."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the answer has to be, thinking before it excepted.

    Raises:
        EngineError: it is empty or too long.
    """

    kind: ConstraintKind
    """What `text` is."""
    text: str
    """The schema, expression or grammar."""

    def __post_init__(self) -> None:
        check(self.text.strip(), f"the {self.kind} is empty: write what the reply has to be", FIELD)
        size = len(self.text)
        check(size <= LONGEST, f"the {self.kind} has {size} characters: it must have at most {LONGEST}", FIELD)


JSON_OBJECT = Constraint(ConstraintKind.SCHEMA, '{"type": "object"}')
"""Any JSON object."""


def of_schema(schema: object) -> Constraint:
    """The constraint of a JSON schema, an object or its text."""
    return Constraint(ConstraintKind.SCHEMA, schema if isinstance(schema, str) else json.dumps(schema))


def of_response_format(wanted: object) -> Constraint | None:
    """The constraint of a `response_format` of OpenAI's API; None for free text.

    Raises:
        EngineError: it has another form.
    """
    match wanted:
        case {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return JSON_OBJECT
        case {"type": "json_schema", "json_schema": {"schema": schema}}:
            return of_schema(schema)
    raise EngineError("response_format needs json_schema with a name and a schema, or the type json_object", FIELD)


def one_of(choices: Sequence[str]) -> Constraint:
    """The constraint that the answer is one of these texts.

    Raises:
        EngineError: there is none, or one is empty.
    """
    check(choices and all(choices), "a choice is empty: give each choice a text", FIELD)
    return Constraint(ConstraintKind.GRAMMAR, f"start: {' | '.join(json.dumps(each) for each in choices)}")


MAX_GAMMA = 16
"""Largest γ of a chain; also the most tokens of a tree."""
AUTO = "auto"
NO_DRAFTER = "none"
"""Name of the drafter that never drafts."""
DEFAULT_GAMMA = 4
"""γ for requests that cannot adapt it."""
STOP, DROP_OLDEST, KEEP_ENDS = WHEN_FULL = ("stop", "drop-oldest", "keep-ends")
"""Policies for a conversation that does not fit into the context: refuse the request; leave out the oldest turns; leave
out the turns after the first one. The system prompt and the last turn always stay."""
THINKING_LEVELS = ("none", "no_think", "minimal", "low", "medium", "high", "xhigh", "max")
THINKING_MODES = ("disabled", "chat", "adaptive", "enabled", "thinking")
THINKING_BUDGETS = ("512", "1024", "2048", "4096", "8192", "16384")
"""Most tokens of thinking."""
THINKING_WORDS = (*THINKING_LEVELS, *THINKING_MODES, *THINKING_BUDGETS)
"""Values of `Request.thinking` besides on and off; each chat template knows some of them, or none."""
ANY_TOOL, SOME_TOOL = "auto", "required"
"""Values of `Request.tool_choice` besides the name of a tool: the model chooses whether it calls tools, or must."""


@dataclass(frozen=True, slots=True)
class Request:
    """One reply to generate.

    The prompt is `messages`, rendered by the model's chat template, or `prompt` as plain text, or `prompt_ids`; exactly
    one of the three is given.

    Raises:
        EngineError: a value is out of range, or not exactly one kind of prompt is given.
    """

    request_id: str
    """Name of the request, unique among open requests."""
    messages: tuple[Message, ...] = ()
    """A conversation, rendered by the chat template; empty for another kind of prompt."""
    prompt: str | None = None
    """A prompt as plain text; None for another kind."""
    prompt_ids: tuple[int, ...] = ()
    """A prompt as token ids; empty for another kind."""
    sampling: Sampling = field(default_factory=Sampling)
    """How tokens are drawn."""
    drafter: str = setting(AUTO, "What proposes tokens.", "NAME", DRAFTING, applies=Applies.ROUND)
    """One of `Ready.drafters`; auto is the first, best one."""
    gamma: int | None = setting(
        None, "Tokens to draft each round; auto adapts.", "N", DRAFTING,
        Rule(f"from 0 (no drafting) to {MAX_GAMMA}", lambda x: 0 <= x <= MAX_GAMMA), Applies.ROUND,
    )  # fmt: skip
    """Draft length of each round, 0 (no drafting) to `MAX_GAMMA`; None adapts it for speed, or is `DEFAULT_GAMMA` for a
    sampled reply with a seed whose tokens depend on it: outside the packed kernels, or with lenience."""
    max_tokens: int = setting(1024, "End the reply after N tokens.", "N", SAMPLING, ONE_OR_MORE)
    """Maximum number of reply tokens."""
    stop: tuple[str, ...] = ()
    """Stop strings: the reply ends before the first of them to appear."""
    reply_ids: tuple[int, ...] = ()
    """Token ids that the reply begins with; the model continues after them. They are not searched for stop strings and
    do not count for `max_tokens`."""
    reply_text: str = ""
    """Text that the reply continues with after `reply_ids`, encoded separately."""
    detail: int = 0
    """Top-k size of the `Detail` in each round; 0 for no detail."""
    thinking: bool | str | None = None
    """Switches thinking on or off, or to one of `THINKING_WORDS`, where the chat template can; None leaves it to the
    template."""
    when_full: str = setting(STOP, "What happens to a chat that is too long.", choices=WHEN_FULL)
    """One of `WHEN_FULL`, for `messages` that do not fit into the context."""
    stop_repeats: bool = False
    """Whether the reply ends when it repeats itself (`engine.sequence.sequence`)."""
    constraint: Constraint | None = None
    """What the answer has to follow; thinking before it is free."""
    not_drafted_from: tuple[int, ...] = ()
    """Keys of texts of other chats (`Engine.other_chats`) that are not used: a reply is not drafted from itself."""
    raw: bool = False
    """Whether the text of the reply keeps the marks of thinking, which is not separated; so it is after a `prompt`."""
    tools: tuple[Tool, ...] = ()
    """Functions that the model may call, if the chat template has a place for them."""
    tool_choice: str = ANY_TOOL
    """`ANY_TOOL`, `SOME_TOOL`, or the name of the tool that must be called."""
    parallel_calls: bool = True
    """Whether a reply may have several calls."""

    def __post_init__(self) -> None:
        if isinstance(self.thinking, str):
            known = ", ".join(THINKING_WORDS)
            check(self.thinking in THINKING_WORDS, f"thinking {self.thinking!r} is not known: choose one of {known}")
        kinds = bool(self.messages) + (self.prompt is not None) + bool(self.prompt_ids)
        check(kinds == 1, "the request has no prompt: give it messages, a prompt or prompt_ids, and only one of them")
        check_settings(self)
        check(all(self.stop), "a stop string is empty: it would end every reply before its first token", "stop")
        check(self.detail >= 0, f"detail is {self.detail}: it must be 0 (off) or more")
        names = [tool.name for tool in self.tools]
        told = f"tool_choice is {self.tool_choice!a:.80}: it must be {ANY_TOOL}, {SOME_TOOL} or the name of a tool"
        check(self.tool_choice in (*names, ANY_TOOL, *([SOME_TOOL] if names else [])), told, "tool_choice")
        for name in names if len(set(names)) < len(names) else ():
            check(names.count(name) == 1, f"the tool {name} is given more than once: give it once", "tools")

    def check_prompt(self) -> None:
        """Check what is invalid for all models: lone surrogates and negative token ids.

        Raises:
            EngineError: the prompt, a stop string or the prescribed reply is invalid.
        """
        said = (text for message in self.messages for part in message.parts for text in (part.text, part.name))
        told = (text for tool in self.tools for text in (tool.description, tool.parameters))
        for text in (self.prompt or "", self.reply_text, *said, *told, *self.stop):
            try:
                text.encode()
            except UnicodeEncodeError as error:
                half = text[error.start]
                raise EngineError(f"the prompt has half of a surrogate pair ({half!a}): take it out") from None
        for name, ids in (("prompt_ids", self.prompt_ids), ("reply_ids", self.reply_ids)):
            least = min(ids, default=0)
            check(least >= 0, f"{name} holds {least}: token ids start at 0")

    def check_vocabulary(self, size: int) -> None:
        """Check token ids against a vocabulary of V = `size` tokens.

        Raises:
            EngineError: the prompt, the prescribed reply or a bias has a token outside it.
        """
        self.sampling.check_vocabulary(size)
        for name, ids in (("prompt_ids", self.prompt_ids), ("reply_ids", self.reply_ids)):
            largest = max(ids, default=0)
            check(largest < size, f"{name} holds {largest} and the model has {size} tokens: choose ids below that")


def parse_gamma(text: str) -> int | None:
    """Parse γ from text: a whole number, or auto (None).

    Raises:
        EngineError: it is neither.
    """
    if text == AUTO:
        return None
    try:
        return int(text)
    except ValueError:
        raise EngineError(f"gamma is {text!r}: it must be a whole number or auto") from None


def gamma_text(gamma: int | None) -> str:
    """Inverse of `parse_gamma`."""
    return AUTO if gamma is None else str(gamma)


def check_gamma(gamma: int | None) -> None:
    """Check a draft length.

    Raises:
        EngineError: it is out of range.
    """
    settings_of(Request)["gamma"].check("gamma", gamma)
