"""Syntaxes in which models write calls of tools: from the text of a call to names and arguments.

Sources: the chat templates of the models, and the parsers of llama.cpp (`common/parsers`) and vLLM
(`vllm/tool_parsers`).
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import NoneType
from typing import Any, NamedTuple

from specchat.engine.request import Tool
from specchat.engine.sequence.json_schema import target


class ReadCall(NamedTuple):
    """A call as read from a reply."""

    name: str
    """Name of the tool."""
    arguments: Any
    """Its arguments; an object, if the call is valid."""


class NoCallError(ValueError):
    """The text is no call in this syntax."""


_NAMES, _ARGUMENTS = ("name", "tool_name"), ("arguments", "parameters")
NAMED = re.compile(
    r"([A-Za-z_][\w.-]*)(?::\d+)?\s*"
    r"(?:\[CALL_ID\]\w+)?(?:\[ARGS\]|<｜tool▁sep｜>|<\|tool_call_argument_begin\|>|<\|tool_call:args\|>|\n```json\n)?\s*(?=\{)"
)
"""Name, perhaps number or id, and what separates them from the arguments: Mistral, DeepSeek, Kimi K2, Solar."""
_BETWEEN = re.compile(r"(?:<\|tool_call:begin\|>\w*|<[^>]*>|[\s`]|function(?=<))*")
"""What may be around them."""
_FENCE = re.compile(r"\A\s*```\w*\n(.*?)\n?```\s*\Z", re.DOTALL)
_SPACE = r"(?:\w+:|｜DSML｜)?"
"""Name space of a tag: of Muse, of DeepSeek V3.2."""
FUNCTION = re.compile(rf"""<{_SPACE}(?:function|invoke)(?:=| name=)["']?([^"'>\s]+)["']?>\s*""")
FUNCTION_END = re.compile(rf"\s*</{_SPACE}(?:function|invoke)>")
PARAMETER = re.compile(
    rf"""\s*<{_SPACE}(param(?:eter)?)(?:=| name=)["']?(?P<key>[^"'>]+?)["']?(?:\ string="(?P<text>true|false)")?>"""
    rf"(?P<value><!\[CDATA\[.*?\]\]>|(?!<!\[CDATA\[).*?)"
    rf"(?:(?P<end></{_SPACE}\1>)|(?=<{_SPACE}\1[= ])|(?=</{_SPACE}(?:function|invoke)>))",
    re.DOTALL,
)
"""An argument in tags; `text` says whether the value is a text, of DeepSeek V3.2."""
PAIRS = re.compile(r"\s*(?:<tool_call:\w+>)?([^\s<]+)(?:<tool_sep:\w+>)?(?=\s*(?:<|\Z))")
"""The name before arguments in pairs of tags; the tags around it are of Hy3."""
_PAIRS_END = re.compile(r"\s*(?:</tool_call:\w+>)?\s*")
PAIR = re.compile(
    r"\s*<(\w*)arg_key(:\w+)?>(?P<key>.*?)</\1arg_key\2?>\s*<\1arg_value\2?>(?P<value>.*?)"
    r"(?P<end></\1arg_value\2?>)(?P<text>)",
    re.DOTALL,
)
_CDATA = re.compile(r"\s*<!\[CDATA\[(.*)\]\]>\s*", re.DOTALL)
_GEMMA = re.compile(r"call:([\w.-]+)(?=\{)")
_GEMMA_TOKEN = re.compile(r'<\|"\|>(.*?)<\|"\|>|("(?:[^"\\]|\\.)*")|([A-Za-z_][\w-]*)(\s*:)?', re.DOTALL)
"""A text between Gemma's quotes, one between usual ones, a key or a word."""
_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", NoneType: "null", list: "array"}
_DECODER = json.JSONDecoder(strict=False)
"""Accepts line breaks in strings, which some models write."""


def read_calls(text: str, tools: Sequence[Tool]) -> list[tuple[str, str]]:
    """Names and arguments, as JSON objects, of the calls that a text consists of, in the first syntax that fits.

    Args:
        text: what is between the marks of calls.
        tools: what may be called.

    Raises:
        NoCallError: it fits none, or something else is called.
    """
    known, fenced = {tool.name: schemas_of(tool) for tool in tools}, _FENCE.match(text)
    text = fenced[1] if fenced else text
    for syntax in _SYNTAXES:
        try:
            calls = [(call.name.removeprefix("functions."), call.arguments) for call in syntax(text, known)]
            if calls and all(name in known and isinstance(arguments, dict) for name, arguments in calls):
                return [(name, json.dumps(each, ensure_ascii=False, allow_nan=False)) for name, each in calls]
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    raise NoCallError(text)


@lru_cache(maxsize=256)
def schemas_of(tool: Tool) -> Mapping[str, Any]:
    """Schemas of a tool's arguments by name, each instead of a reference to it."""
    whole = json.loads(tool.parameters)
    properties = whole.get("properties")
    if not isinstance(properties, dict):
        return {}
    return {name: _resolved(whole, schema) for name, schema in properties.items()}


def _resolved(whole: Any, schema: Any) -> Any:
    reference = schema.get("$ref") if isinstance(schema, dict) else None
    return target(whole, reference) if isinstance(reference, str) else schema


def _types_of(schema: Any) -> frozenset[str]:
    """Types that a value may have by its schema; empty if it does not say."""
    if not isinstance(schema, dict):
        return frozenset()
    options = [option for name in ("anyOf", "oneOf") for option in schema.get(name, ())]
    if options:
        return frozenset().union(*map(_types_of, options))
    stated = schema.get("type", [_TYPES.get(type(each), "object") for each in schema.get("enum", ())])
    types = {stated} if isinstance(stated, str) else set(stated)
    return frozenset(types | ({"integer"} if "number" in types else set()))


def is_text(schema: Any) -> bool:
    """Whether a value is written as it is, not as JSON, where a syntax writes texts so."""
    types = _types_of(schema)
    return "string" in types and types <= {"string", "null"}


_Known = Mapping[str, Mapping[str, Any]]


def _json(text: str, known: _Known) -> Iterator[ReadCall]:  # noqa: ARG001
    """An object, a list of objects, or several of them: Hermes, Qwen3, Llama 3, Granite, Mistral Nemo, Command A.

    Of Apertus, the name is the only key of each.
    """
    at, text = 0, text.strip().removeprefix("functools").strip(";")
    while at < len(text):
        value, at = _DECODER.raw_decode(text, at)
        for each in value if isinstance(value, list) else [value]:
            call = each.get("function", each) if isinstance(each, dict) and "name" not in each else each
            if not isinstance(call, dict):
                raise NoCallError(text)
            name = next((call[key] for key in _NAMES if key in call), None)
            arguments: Any = next((call[key] for key in _ARGUMENTS if key in call), {})
            if name is None and len(call) == 1:
                ((name, arguments),) = call.items()
            if not isinstance(name, str):
                raise NoCallError(text)
            yield ReadCall(name, _DECODER.decode(arguments) if isinstance(arguments, str) else arguments)
        at = len(text) - len(text[at:].lstrip(" \t\r\n;,"))


def _named(text: str, known: _Known) -> Iterator[ReadCall]:  # noqa: ARG001
    """Names, each with an object after a separator."""
    at = 0
    while at < len(text):
        between = _BETWEEN.match(text, at)
        at = between.end() if between else at
        if at < len(text):
            found = NAMED.match(text, at)
            if not found:
                raise NoCallError(text)
            arguments, at = _DECODER.raw_decode(text, found.end())
            yield ReadCall(found[1], arguments)


def _functions(text: str, known: _Known) -> Iterator[ReadCall]:
    """XML with names in tags: Qwen3.5, MiniMax M2, Seed-OSS, DeepSeek V3.2; of Functionary the arguments are JSON."""
    at = 0
    while begun := FUNCTION.search(text, at):
        arguments: dict[str, Any] = {}
        at = begun.end()
        for key, value, end in read_tags(PARAMETER, text, at, known.get(begun[1], {})):
            arguments.setdefault(key, value)
            at = end
        if text[at : at + 1] == "{":
            arguments, at = _DECODER.raw_decode(text, at)
        end_tag = FUNCTION_END.match(text, at)
        at = end_tag.end() if end_tag else at
        if not end_tag and text[at:].strip() and not FUNCTION.match(text[at:].lstrip()):
            raise NoCallError(text)  # an argument is cut
        yield ReadCall(begun[1], arguments)


def _pairs(text: str, known: _Known) -> Iterator[ReadCall]:
    """XML with a key and a value for each argument: GLM, LongCat, Hy3."""
    at = 0
    while at < len(text):
        name, arguments = PAIRS.match(text, at), dict[str, Any]()
        if name is None:
            raise NoCallError(text)
        at = name.end()
        for key, value, after in read_tags(PAIR, text, at, known.get(name[1], {})):
            arguments.setdefault(key, value)
            at = after
        end = _PAIRS_END.match(text, at)
        at = end.end() if end else at
        yield ReadCall(name[1], arguments)


def read_tags(
    pattern: re.Pattern[str], text: str, at: int, schemas: Mapping[str, Any], *, closed: bool = False
) -> Iterator[tuple[str, Any, int]]:
    """Arguments in tags from a place in a text on: name, value, and where it ends.

    Args:
        pattern: `PARAMETER` or `PAIR`.
        schemas: of the tool's arguments by name.
        closed: whether an argument without its closing tag is left out.
    """
    while (found := pattern.match(text, at)) and (found["end"] or not closed):
        key, at = found["key"].strip(), found.end()
        yield key, _typed(found["value"], schemas.get(key), is_said=found["text"] == "true"), at


def _typed(written: str, schema: Any, *, is_said: bool) -> Any:
    """A value that is written as text: it is kept if the schema wants a text or `is_said`, or it is no JSON."""
    quoted = _CDATA.fullmatch(written)
    text = quoted[1] if quoted else written[1:].removesuffix("\n") if written.startswith("\n") else written
    types = _types_of(schema)
    if is_said or (is_text(schema) and (text != "null" or "null" not in types)):
        return text
    value = _value(text)
    return text if "string" in types and _TYPES.get(type(value), "object") not in types else value


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return {"True": True, "False": False, "None": None}.get(text.strip(), text)


def _gemma(text: str, known: _Known) -> Iterator[ReadCall]:  # noqa: ARG001
    """Objects with keys and texts in marks of their own: Gemma 4."""

    def as_json(found: re.Match[str]) -> str:
        said, quoted, word, colon = found.groups()
        if said is not None:
            return json.dumps(said)
        return quoted or (f'"{word}":' if colon else word)

    for found in _GEMMA.finditer(text):
        yield ReadCall(found[1], _DECODER.raw_decode(_GEMMA_TOKEN.sub(as_json, text[found.end() :]))[0])


def _python(text: str, known: _Known) -> Iterator[ReadCall]:
    """Calls in Python's syntax, in a list or not: LFM2, Llama 4, OLMo 3.

    A template of Llama 4 writes every value as text: it gets the type of the schema.
    """
    with warnings.catch_warnings(action="ignore"):  # about escapes in strings
        tree = ast.parse(text.strip().removesuffix("<|python_end|>"), mode="exec")
    for statement in tree.body:
        inner = statement.value if isinstance(statement, ast.Expr) else None
        for call in inner.elts if isinstance(inner, ast.List | ast.Tuple) else [inner]:
            if not isinstance(call, ast.Call) or call.args or not all(each.arg for each in call.keywords):
                raise NoCallError(text)
            name, arguments = ast.unparse(call.func), {str(each.arg): _literal(each.value) for each in call.keywords}
            schemas = known.get(name, {})
            for key, value in arguments.items():
                if isinstance(value, str) and (types := _types_of(schemas.get(key))) and "string" not in types:
                    arguments[key] = _value(value)
            yield ReadCall(name, arguments)


class _Constants(ast.NodeTransformer):
    """Replaces JSON's names of constants by Python's."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """A name."""
        constants = {"true": True, "false": False, "null": None}
        return ast.Constant(constants[node.id]) if node.id in constants else node


def _literal(node: ast.expr) -> Any:
    return ast.literal_eval(_Constants().visit(node))


_SYNTAXES: tuple[Callable[[str, _Known], Iterator[ReadCall]], ...] = (
    _json, _functions, _gemma, _named, _pairs, _python,
)  # fmt: skip
