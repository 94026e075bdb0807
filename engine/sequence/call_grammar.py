"""Grammars of replies with calls of tools, from what the chat template writes around a call and from schemas."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from specchat.engine.errors import check
from specchat.engine.request import ANY_TOOL, SOME_TOOL, Constraint, ConstraintKind, Request, Tool
from specchat.engine.sequence.call_formats import find_call_format
from specchat.engine.sequence.call_syntax import is_text, schemas_of
from specchat.engine.sequence.json_schema import simplified
from specchat.engine.sequence.template_traits import SAMPLE_ARGUMENTS, SAMPLE_CALL, traits_of

Literal = Callable[[str], str]
"""A text in Lark."""
_LINE = {"x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}}
"""JSON on one line."""
_JSON = re.compile(
    r"\{\s*"
    + r"\s*,\s*".join(f'"{key}"\\s*:\\s*{json.dumps(value)}' for key, value in SAMPLE_ARGUMENTS.items())
    + r"\s*\}"
)
"""The arguments of the sample as a JSON object."""
_FIRST, _SECOND, _THIRD = SAMPLE_ARGUMENTS.items()
_PARTS = re.compile(
    f"(.*?){_FIRST[0]}(.*?){_FIRST[1]}(.*?){_SECOND[0]}.*?{_SECOND[1]}.*?{_THIRD[0]}(.*?){_THIRD[1]}(.*)", re.DOTALL
)
"""The texts between names and values of the sample's arguments."""
_NO_GRAMMAR = "how this model writes a call is not known, so that none can be forced: leave tool_choice at auto"


@dataclass(frozen=True, slots=True)
class _Written:
    """The texts around the parts of a call whose arguments are no JSON object."""

    begin: str
    """Before the arguments."""
    before_key: str
    text: tuple[str, str]
    """Before and after the value of an argument that is a text."""
    other: tuple[str, str]
    """Before and after a value that is written as JSON."""
    separator: str
    """Between two arguments."""
    end: str
    """After the arguments."""

    @classmethod
    def of(cls, text: str) -> _Written:
        """Separate what follows the name in the sample into its parts.

        Raises:
            EngineError: it has no arguments.
        """
        found = _PARTS.fullmatch(text)
        check(found, _NO_GRAMMAR, "tool_choice")
        assert found is not None
        head, before_text, between, before_other, end = found.groups()
        before_key = _common(head[::-1], between[::-1])[::-1]
        rest = between.removesuffix(before_key)
        if before_text.startswith(before_other) and before_text != before_other:
            closing, after_other = before_text.removeprefix(before_other), ""
        else:
            closing = after_other = _common(rest, end)
        return cls(
            head.removesuffix(before_key), before_key, (before_text, closing), (before_other, after_other),
            rest.removeprefix(closing), end.removeprefix(after_other),
        )  # fmt: skip


def _common(first: str, second: str) -> str:
    """What two texts begin with."""
    return "".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


class _Grammar:
    """Writes the grammar of one call.

    Args:
        before: text before the name.
        after: what follows it in the sample.
        literal: how a text with control tokens is written.
    """

    def __init__(self, before: str, after: str, literal: Literal) -> None:
        self._before, self._after, self._literal = before, after, literal
        self._json = _JSON.search(after)
        self._written = None if self._json else _Written.of(after)
        self.rules: list[str] = []

    def call(self, tool: Tool) -> str:
        """A call of a tool, in Lark."""
        schema = {"type": "object", "properties": {}, "additionalProperties": False} | json.loads(tool.parameters)
        if self._json:
            start, end = self._json.span()
            begin, arguments, rest = self._after[:start], _value(schema), self._after[end:]
        else:
            assert self._written is not None
            begin, arguments, rest = self._written.begin, self._arguments(tool, schema), self._written.end
        begin = begin.replace(SAMPLE_CALL.name, tool.name)  # Muse writes it twice
        return " ".join([self._text(self._before + tool.name + begin), arguments, self._text(rest)])

    def _text(self, text: str) -> str:
        """A text in which the id of the sample stands for any."""
        parts = [self._literal(part) if part else "" for part in text.split(SAMPLE_CALL.id)]
        return " /[A-Za-z0-9]{9}/ ".join(parts)

    def _arguments(self, tool: Tool, schema: Mapping[str, Any]) -> str:
        """Required arguments, then others."""
        assert self._written is not None
        properties, required = schemas_of(tool), schema.get("required") or []
        shared = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
        made, separator = "", self._text(self._written.separator)
        for key in sorted(properties, key=lambda key: key not in required):  # stable
            one = self._argument(key, properties[key], shared)
            one = f"{separator if made else ''} {one}"
            made += f" {one}" if key in required else f" ({one})?"
        return made

    def _argument(self, key: str, schema: Any, shared: Mapping[str, Any]) -> str:
        assert self._written is not None
        as_text = is_text(schema)
        before, after = self._written.text if as_text else self._written.other
        begun = self._text(self._written.before_key + key + before)
        if not as_text:
            value = _value({**schema, **shared} if isinstance(schema, dict) else {})
            return f"{begun} {value} {self._text(after)}"
        if choices := [each for each in schema.get("enum", ()) if isinstance(each, str)]:
            return f"{begun} ({' | '.join(map(json.dumps, choices))}) {self._text(after)}"
        most = next((each["maxLength"] for each in (schema, *schema.get("anyOf", ())) if "maxLength" in each), None)
        return f"{begun} {self._free_text(after, most if isinstance(most, int) else None)}"

    def _free_text(self, after: str, most: int | None) -> str:
        """A text up to and with what follows it, of at most this number of characters."""
        end, count, name = self._text(after), "*" if most is None else f"{{0,{most}}}", f"text{most or ''}"
        if end.startswith("<["):
            return f"/(?s:.{count})/ {end}"
        escaped = re.escape(after).replace("/", "\\/").replace("\\\n", "\\n")
        of_python = f"{name}: /[^{escaped}\\\\\\n]{count}{escaped}/"
        rule = of_python if after in ("'", '"') else f"{name}[lazy]: /(?s:.{count}){escaped}/"
        if rule not in self.rules:
            self.rules.append(rule)
        return name


def _value(schema: Mapping[str, Any]) -> str:
    return f"%json {json.dumps({**simplified(schema), **_LINE})}"


def call_constraint(request: Request, tokenizer: Any, is_control: Callable[[int], bool]) -> Constraint | None:
    """The constraint of the calls of a reply.

    If the request chooses a tool, the reply is one call of it. If the model chooses and a tool is strict, the reply is
    text with calls that follow their schemas; so it is where a control token begins a call, else there is None.

    Args:
        request: with tools.
        tokenizer: a `PlainTokenizer`.
        is_control: whether llguidance takes a token for one that no text matches.

    Raises:
        EngineError: how the model writes the call that is chosen is not known.
    """
    form, chosen = find_call_format(tokenizer), request.tool_choice != ANY_TOOL
    check(form or not chosen, _NO_GRAMMAR, "tool_choice")
    if form is None or not (chosen or any(tool.strict for tool in request.tools)):
        return None
    added = tokenizer.backend_tokenizer.get_added_tokens_decoder()
    names = {each.content: f"<[{token}]>" for token, each in added.items() if is_control(token)}
    if not chosen and form.marks.opening not in names:
        return None
    pattern = re.compile(f"({'|'.join(map(re.escape, sorted(names, key=len, reverse=True)))})") if names else None

    def literal(text: str) -> str:
        parts = pattern.split(text) if pattern else [text]
        return " ".join(names.get(part) or json.dumps(part) for part in parts if part)

    before, after = form.around_name(traits_of(tokenizer).call)
    grammar = _Grammar(before, after, literal)
    calls = [grammar.call(tool) for tool in request.tools if request.tool_choice in (ANY_TOOL, SOME_TOOL, tool.name)]
    rules = [f"call{number}: {call}" for number, call in enumerate(calls)]
    one = " | ".join(f"call{number}" for number in range(len(calls)))
    start = one if chosen else f"said (({one}) said){'*' if request.parallel_calls else '?'}\nsaid: /(?s:.*)/"
    return Constraint(ConstraintKind.CALL, "\n".join([f"start: {start}", *rules, *grammar.rules]))


def may_end_thinking(constraint: Constraint, tokenizer: Any) -> bool:
    """Whether a call that is forced may end the thinking instead of its closing mark, as some models write it."""
    form = find_call_format(tokenizer)
    begins = constraint.text.startswith("start: call") and "\ncall0: <[" in constraint.text
    return begins and form is not None and bool(form.marks.closing)
