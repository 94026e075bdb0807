"""Requests to the engine: prompt, sampling, drafting, limits."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import Any

from specchat.engine.constraint import Constraint
from specchat.engine.errors import EngineError, check
from specchat.engine.settings import (
    DRAFTING,
    ONE_OR_MORE,
    SAMPLING,
    Applies,
    Rule,
    check_settings,
    setting,
    settings_of,
)

ROLES = ("system", "user", "assistant", "tool")

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
_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
ANY_TOOL, SOME_TOOL = "auto", "required"
"""Values of `Request.tool_choice` besides the name of a tool: the model chooses whether it calls tools, or must."""
_LARGEST_XTC = 0.5
"""Two tokens cannot both be likelier."""
COLDEST = 1e-20
"""Lowest temperature: only tied tokens share the probability at it, and no penalised logit overflows float32."""
_OFTEN = Rule("from -2 to 2 (0 is off)", lambda x: -2 <= x <= 2)
"""Range of the penalties of OpenAI's API."""


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


def _number(default: float, sign: str, words: str, holds: Callable[[float], bool], text: str) -> Any:
    """A setting of `Sampling` that a model may recommend."""
    return setting(default, text, sign, SAMPLING, Rule(words, holds), recommended=True)


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling settings: from logits to the standardised distribution (Leviathan et al. 2023, section 2.2).

    Raises:
        EngineError: a value is out of range.
    """

    temperature: float = _number(0.0, "T", "from 0 (greedy) to 100", lambda x: 0 <= x <= 100,
        "0 is greedy, usual is at most 2; default, as for the others: the model's own.")  # fmt: skip
    """0 is greedy: the most likely token."""
    top_k: int = _number(0, "N", "0 (off) or more", lambda x: x >= 0, "Keep the N likeliest tokens; 0 keeps all.")
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: float = _number(1.0, "P", "above 0 and at most 1", lambda x: 0 < x <= 1,
        "Keep the likeliest tokens that make up P.")  # fmt: skip
    """Keep the smallest set of most likely tokens whose total probability reaches this; 1 keeps all."""
    min_p: float = _number(0.0, "P", "at least 0 and below 1", lambda x: 0 <= x < 1,
        "Drop tokens below this share of the likeliest.")  # fmt: skip
    """Drop tokens less likely than this fraction of the most likely one; 0 drops none."""
    seed: int | None = setting(None, "Repeat the same random draws.", "N", SAMPLING)
    """None for a random one. With one, each position of the text has its number, which draws its token: the reply does
    not depend on drafts."""
    repetition_penalty: float = _number(1.0, "F", "from 0.01 to 100 (1 is off)", lambda x: 0.01 <= x <= 100,
        "Above 1 (usual: up to 1.3): tokens of prompt and reply become less likely.")  # fmt: skip
    """Divides positive and multiplies negative logits of tokens in prompt or reply (Keskar et al. 2019, "CTRL", section
    4.1, as implemented in transformers); 1 is off."""
    presence_penalty: float = _number(0.0, "F", *_OFTEN, "Above 0: tokens of the reply become less likely.")
    """Subtracted once from the logits of tokens in the reply so far (as in OpenAI's API); 0 is off."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Pairs (token id, value added to its logit before penalties)."""
    lenience: float = setting(
        1.0, "Below 1: faster, but no longer the target's exact distribution.", "L", DRAFTING,
        Rule("above 0 and at most 1 (lossless)", lambda x: 0 < x <= 1),
    )  # fmt: skip
    """Below 1, drafted tokens are accepted more often than is lossless (Leviathan et al. 2023, Appendix A.5)."""
    frequency_penalty: float = _number(0.0, "F", *_OFTEN,
        "Above 0: tokens of the reply become less likely with each occurrence.")  # fmt: skip
    """Subtracted from a token's logit once for each time it is in the reply so far (as in OpenAI's API); 0 is off."""
    dry_multiplier: float = _number(0.0, "F", "0 (off) or more", lambda x: 0 <= x < inf,
        "Above 0 (usual: 0.8): tokens that continue a repetition become less likely.")  # fmt: skip
    """DRY (`engine.sampling.dry`): a token that would continue a repetition of n ≥ `dry_allowed_length` tokens loses
    `dry_multiplier` · `dry_base` ^ (n - `dry_allowed_length`) of its logit; 0 is off."""
    dry_base: float = _number(1.75, "F", "1 or more", lambda x: 1 <= x < inf,
        "How fast DRY grows with the length of the repetition; usual: 1.75.")  # fmt: skip
    """How fast the penalty of DRY grows with the length of the repetition; at least 1."""
    dry_allowed_length: int = _number(2, "N", "from 1 to 2147483648", lambda x: 1 <= x <= 1 << 31,
        "Length of a repetition from which DRY counts, in tokens; usual: 2.")  # fmt: skip
    """Length of the shortest repetition that DRY penalises; at least 1."""
    dry_penalty_last_n: int = _number(-1, "N", "-1 (all), 0 (off) or up to 2147483648", lambda x: -1 <= x <= 1 << 31,
        "Last tokens in which DRY looks for repetitions; -1: all.")  # fmt: skip
    """Number of last tokens of prompt and reply in which DRY looks for repetitions; -1 for all, 0 is off."""
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    """Texts that end a repetition: none reaches across a token that contains one of them."""
    xtc_probability: float = _number(0.0, "P", "from 0 (off) to 1", lambda x: 0 <= x <= 1,
        "Above 0: chance to draw without the top choices (XTC).")  # fmt: skip
    """XTC: chance that a token is drawn without all tokens of at least `xtc_threshold` but the least likely of them,
    after all filters, as in text-generation-webui; 0 is off. Greedy replies do not use it."""
    xtc_threshold: float = _number(0.1, "P", "above 0 and at most 1", lambda x: 0 < x <= 1,
        "Least probability of a top choice of XTC; usual: 0.1.")  # fmt: skip
    """Above 0.5 it is off: at most one token reaches it."""

    def __post_init__(self) -> None:
        check_settings(self)
        for token, bias in self.logit_bias:
            check(token >= 0, f"logit-bias names token {token}: token ids start at 0", "logit_bias")
            told = f"logit-bias of token {token} is {bias:g}: it must be from -100 to 100"
            check(-100 <= bias <= 100, told, "logit_bias")
        tokens = [token for token, _ in self.logit_bias]
        for token in tokens if len(set(tokens)) < len(tokens) else ():
            told = f"logit-bias names token {token} more than once: give each token one bias"
            check(tokens.count(token) == 1, told, "logit_bias")
        told = "a dry-sequence-breaker is empty: it would break every repetition"
        check(all(self.dry_sequence_breakers), told, "dry_sequence_breakers")

    @property
    def greedy(self) -> bool:
        """Whether the standardised distribution is one-hot."""
        return self.temperature == 0 or self.top_k == 1

    @property
    def lossless(self) -> bool:
        """Whether the reply has the target's own distribution, whatever the drafter."""
        return self.lenience == 1

    @property
    def dry(self) -> bool:
        """Whether DRY is on."""
        return self.dry_multiplier > 0 and self.dry_penalty_last_n != 0

    @property
    def xtc(self) -> bool:
        """Whether XTC is on."""
        return self.xtc_probability > 0 and self.xtc_threshold <= _LARGEST_XTC and not self.greedy

    @property
    def adjusts_drafts(self) -> bool:
        """Whether the logits of drafts are changed: by a bias or a penalty other than DRY."""
        penalties = self.presence_penalty, self.frequency_penalty
        return self.repetition_penalty != 1 or any(penalties) or bool(self.logit_bias)

    @property
    def adjusts(self) -> bool:
        """Whether the target's logits are changed (bias, penalties) before they are standardised."""
        return self.adjusts_drafts or self.dry

    def check_vocabulary(self, size: int) -> None:
        """Check the settings against a vocabulary of V = `size` tokens.

        Raises:
            EngineError: a biased token is outside it.
        """
        for token, _ in self.logit_bias:
            check(
                token < size,
                f"logit-bias names token {token} and the model has {size} tokens: choose one below that",
                "logit_bias",
            )


SAMPLING_NUMBERS = tuple(name for name, each in settings_of(Sampling).items() if each.recommended)
"""Fields of `Sampling` that a model may recommend and a client may set."""


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
    """Whether the reply ends when it repeats itself (`engine.sequence.repetition`)."""
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
