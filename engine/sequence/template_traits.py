"""What a chat template accepts, and how it reads thinking: found in its text, or by rendering small conversations."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

from specchat.engine.request import (
    THINKING_BUDGETS,
    THINKING_LEVELS,
    THINKING_MODES,
    Message,
    MessagePart,
    PartKind,
    Tool,
)
from specchat.engine.round import Call
from specchat.engine.sequence.template import default_template, render

ON, OFF = "on", "off"
_FLAGS = ("enable_thinking", "thinking", "reasoning")
"""Variables that switch thinking: of Qwen3, GLM-4.5, Gemma 4; of DeepSeek-V3.1, Granite, Kimi K3; of Command A."""
_WORDS = MappingProxyType({
    "reasoning_effort": (THINKING_LEVELS, ("low", "medium", "high")),
    "thinking_effort": (THINKING_LEVELS, ("low", "medium", "high")),
    "reasoning_strength": (THINKING_LEVELS, ("low", "medium", "high", "xhigh")),
    "thinking_mode": (THINKING_MODES, ()),
})  # fmt: skip
"""Variables that take a word (gpt-oss, Hy3, Solar; Kimi K3; Muse; MiniMax M3), the words to try, and those to offer if
a template writes any word into the prompt."""
_OFF = (OFF, "none", "no_think", "disabled", "chat")
_SAME: Mapping[object, tuple[str, ...]] = MappingProxyType({
    True: (ON, "enabled", "thinking"), False: _OFF, "none": ("none", *_OFF)
})  # fmt: skip
"""Values of `Request.thinking` that templates have different words for."""
_BUDGET = "thinking_budget"
"""Variable with the most tokens of thinking: of Seed-OSS."""
_SLASH_COMMAND = re.compile(r"['\"](/[A-Za-z]\w*)['\"]")
_FIELDS = ("reasoning_content", "reasoning", "thinking", "thought", "tool_plan")
"""Fields of a message that templates read the thinking from: of most; of Kimi K3; of gpt-oss; of Apriel; of Cohere."""
_FIELD = re.compile(rf"\b({'|'.join(_FIELDS)})\b")
_PART = re.compile(r"type['\"]?\]?\s*==\s*['\"](thinking|thoughts)['\"]")
"""A template's test for a part of a message that is thinking, of Ministral and of Apertus."""
_NEEDLE, _UNKNOWN = "needle-7f3a", "unknown-7f3a"
_QUESTION = ({"role": "user", "content": _NEEDLE},)
SAMPLE_ARGUMENTS: Mapping[str, str | int] = MappingProxyType(
    {"area7f": "first-7f3a", "book7f": "second-7f3a", "count7f": 7351}
)
"""Names in alphabetical order: some templates sort them."""
SAMPLE_CALL = Call("call7f3a0", "probe_7f3a", json.dumps(dict(SAMPLE_ARGUMENTS)))
SAMPLE_TOOL = Tool(SAMPLE_CALL.name, "Looks up.", '{"type": "object", "properties": {"area7f": {"type": "string"}}}')
_RESPONSES = re.compile(r"\btool_responses\b")
"""A field for the results of calls in the message that has the calls, of Gemma 4."""
_TOOL_ROLE = re.compile(r"['\"]tool['\"]")


class Traits(NamedTuple):
    """What a template accepts."""

    parts: bool
    """Whether the content of a message is a list of parts instead of a text."""
    system: bool
    """Whether a system prompt becomes part of the prompt."""
    tools: bool
    """Whether tools become part of the prompt."""
    call: str
    """`SAMPLE_CALL` as the template writes it, with what follows; empty if it leaves out calls."""
    call_text: bool
    """Whether it takes the arguments of a call as a text, not as an object."""


def traits_of(tokenizer: Any) -> Traits:
    """What the model's chat template accepts."""
    return _traits(*_key(tokenizer))


def ignores_messages(tokenizer: Any) -> bool:
    """Whether the chat template gives a prompt without the text of the message."""
    probe = _Probe(*_key(tokenizer))
    prompts = [probe(*_QUESTION), probe(as_parts(_QUESTION[0]))]
    return any(text is not None for text in prompts) and not any(_NEEDLE in (text or "") for text in prompts)


def thinking_values(tokenizer: Any) -> Mapping[str, Mapping[str, object]]:
    """Values of a model's thinking switch, such as on, off, low, high; of each the template variables that set it."""
    return _thinking(*_key(tokenizer)) if tokenizer.chat_template else {}


def thinking_variables(tokenizer: Any, value: bool | str | None) -> Mapping[str, object]:
    """Template variables for `Request.thinking`; none for a value that the template does not know."""
    known = {} if value is None else thinking_values(tokenizer)
    return next((known[word] for word in _SAME.get(value, (str(value),)) if word in known), {})


def words_of(chat_template: Any) -> tuple[str, ...]:
    """Slash commands that a template searches the conversation for, such as SmolLM3's `/no_think`."""
    return tuple(dict.fromkeys(_SLASH_COMMAND.findall(default_template(chat_template))))


def turn_of(message: Message, chat_template: Any, *, call_text: bool = False) -> dict[str, object]:
    """A message as argument of a chat template, with its thinking where the template looks for it.

    The template keeps or drops the thinking of earlier replies as its model was trained.

    Args:
        call_text: whether the template takes the arguments of calls as texts.
    """
    turn: dict[str, object] = {"role": message.role, "content": message.content}
    for result in message.parts_of(PartKind.RESULT):
        turn |= {"content": result.text, "name": result.name, "tool_call_id": result.call_id}
    if calls := [_call_of(call, as_text=call_text) for call in message.parts_of(PartKind.CALL)]:
        turn["tool_calls"] = calls
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


def tool_of(tool: Tool) -> dict[str, object]:
    """A tool as argument of a chat template, and in the OpenAI protocol."""
    about = {"name": tool.name, "description": tool.description, "parameters": json.loads(tool.parameters)}
    return {"type": "function", "function": about}


def _call_of(part: MessagePart, *, as_text: bool) -> dict[str, object]:
    arguments: object = part.text
    if not as_text:
        with suppress(ValueError):
            arguments = json.loads(part.text)
    return {"id": part.call_id, "type": "function", "function": {"name": part.name, "arguments": arguments}}


def with_responses(turns: Sequence[Mapping[str, object]], chat_template: Any) -> list[dict[str, object]]:
    """The turns, with results of calls in the turn that has the calls, if the template looks for them only there."""
    template = default_template(chat_template)
    made: list[dict[str, Any]] = []
    moved = _RESPONSES.search(template) is not None and _TOOL_ROLE.search(template) is None
    for turn in turns:
        if moved and turn["role"] == "tool" and made and "tool_calls" in made[-1]:
            result = {"name": turn.get("name"), "response": turn["content"]}
            made[-1].setdefault("tool_responses", []).append(result)
        else:
            made.append(dict(turn))
    return made


def as_parts(turn: Mapping[str, object]) -> dict[str, object]:
    """A turn of a conversation with its text as a list of parts."""
    text = turn["content"]
    return {**turn, "content": [{"type": "text", "text": text}]} if isinstance(text, str) else dict(turn)


def _key(tokenizer: Any) -> tuple[str, tuple[tuple[str, str], ...]]:
    named = tokenizer.special_tokens_map.items()
    return default_template(tokenizer.chat_template), tuple(pair for pair in named if isinstance(pair[1], str))


class _Probe:
    """Renders a template without raising."""

    def __init__(self, template: str, named: tuple[tuple[str, str], ...]) -> None:
        self.template = template
        self._tokenizer = SimpleNamespace(chat_template=template, special_tokens_map=dict(named))

    def __call__(self, *turns: Mapping[str, object], **variables: object) -> str | None:
        """The prompt; None if the template refuses."""
        try:
            return render(self._tokenizer, turns, **variables)
        except Exception:  # a template may raise anything
            return None

    def has(self, *turns: Mapping[str, object]) -> bool:
        """Whether the prompt contains the needle."""
        return _NEEDLE in (self(*turns) or "")


@lru_cache(maxsize=8)
def _traits(template: str, named: tuple[tuple[str, str], ...]) -> Traits:
    probe, system = _Probe(template, named), {"role": "system", "content": _NEEDLE}
    parts = not probe.has(*_QUESTION) and probe.has(as_parts(_QUESTION[0]))
    turns = [system, {"role": "user", "content": "Hello"}]
    question = as_parts(_QUESTION[0]) if parts else _QUESTION[0]
    tools = SAMPLE_TOOL.name in (probe(question, tools=[tool_of(SAMPLE_TOOL)]) or "")
    call, call_text = _sample(probe, question, parts) if tools else ("", False)
    return Traits(parts, probe.has(*map(as_parts, turns) if parts else turns), tools, call, call_text)


def _sample(probe: _Probe, question: Mapping[str, object], parts: bool) -> tuple[str, bool]:
    """`SAMPLE_CALL` as a template writes it, and whether it takes its arguments as a text."""
    called = MessagePart(PartKind.CALL, SAMPLE_CALL.arguments, SAMPLE_CALL.name, SAMPLE_CALL.id)
    result = replace(called, kind=PartKind.RESULT, text="found")
    messages = Message("assistant", parts=[called]), Message("tool", parts=[result])
    tools = [tool_of(SAMPLE_TOOL)]
    begun = probe(question, tools=tools) or ""
    for call_text in (False, True):
        said = [turn_of(message, probe.template, call_text=call_text) for message in messages]
        said = list(map(as_parts, said)) if parts else said
        whole = probe(question, *with_responses(said, probe.template), tools=tools) or ""
        text = whole.removeprefix(begun) if whole.startswith(begun) else whole.rpartition(_NEEDLE)[2]
        if SAMPLE_CALL.name in text and repr(json.loads(SAMPLE_CALL.arguments)) not in text:
            return text, call_text
    return "", False


@lru_cache(maxsize=8)
def _thinking(template: str, named: tuple[tuple[str, str], ...]) -> Mapping[str, Mapping[str, object]]:
    probe = _Probe(template, named)
    question = as_parts(_QUESTION[0]) if _traits(template, named).parts else _QUESTION[0]
    values: dict[str, Mapping[str, object]] = {}
    for name in (each for each in _FLAGS if each in template):
        off, on = (probe(question, **{name: value}) for value in (False, True))
        if None not in (off, on) and off != on:
            values = {OFF: {name: False}, ON: {name: True}}
            break
    switched_on = values.get(ON, {})
    for name in (each for each in _WORDS if each in template):
        for word in _known_words(probe, question, name, switched_on):
            values.setdefault(word, {**switched_on, name: word})
    least = THINKING_BUDGETS[0]
    if _BUDGET in template and least in (probe(question, **{_BUDGET: int(least)}) or ""):
        values |= {OFF: {_BUDGET: 0}} | {number: {_BUDGET: int(number)} for number in THINKING_BUDGETS}
    return values


def _known_words(
    probe: _Probe, question: Mapping[str, object], name: str, switched_on: Mapping[str, object]
) -> list[str]:
    """The words that a variable of a template takes."""
    words, usual = _WORDS[name]
    prompts = {word: probe(question, **switched_on, **{name: word}) for word in (*words, _UNKNOWN)}
    other = prompts.pop(_UNKNOWN)
    taken = {word: text for word, text in prompts.items() if text is not None}
    if other is None:  # the template refuses words that it does not know
        return list(taken)
    if _UNKNOWN in other:
        return [word for word in taken if word in usual or taken[word].replace(word, _UNKNOWN) != other]
    quoted = [word for word in taken if f"'{word}'" in probe.template or f'"{word}"' in probe.template]
    differs = [word for word in taken if taken[word] != other]
    return [word for word in taken if word in differs or word in quoted] if differs else []
