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
from typing import Any, NamedTuple

from specchat.engine.message import Tool


class ReadCall(NamedTuple):
    """A call as read from a reply."""

    name: str
    """Name of the tool."""
    arguments: Any
    """Its arguments; an object, if the call is valid."""


class NoCallError(ValueError):
    """The text is no call in this syntax."""


_NAMES, _ARGUMENTS = ("name", "tool_name"), ("arguments", "parameters")
_NAMED = re.compile(
    r"([A-Za-z_][\w.-]*)(?::\d+)?\s*"
    r"(?:\[CALL_ID\]\w+)?(?:\[ARGS\]|<｜tool▁sep｜>|<\|tool_call_argument_begin\|>|\n```json\n)?\s*(?=\{)"
)
"""Name, perhaps number or id, and what separates them from the arguments: Mistral, DeepSeek, Kimi K2."""
_BETWEEN = re.compile(r"(?:<[^>]*>|[\s`]|function(?=<))*")
"""What may be around them."""
_FENCE = re.compile(r"\A\s*```\w*\n(.*?)\n?```\s*\Z", re.DOTALL)
_FUNCTION = re.compile(
    r"""<(?:function|invoke)(?:=| name=)["']?([^"'>\s]+)["']?>(.*?)(?:</(?:function|invoke)>|\Z)""", re.DOTALL
)
_PARAMETER = re.compile(
    r"""<parameter(?:=| name=)["']?([^"'>]+?)["']?>(.*?)(?:</parameter>|(?=<parameter[= ])|\Z)""", re.DOTALL
)
_PAIR = re.compile(r"<(\w*)arg_key>(.*?)</\1arg_key>\s*<\1arg_value>(.*?)</\1arg_value>", re.DOTALL)
_GEMMA = re.compile(r"call:([\w.-]+)(?=\{)")
_GEMMA_TOKEN = re.compile(r'<\|"\|>(.*?)<\|"\|>|("(?:[^"\\]|\\.)*")|([A-Za-z_][\w-]*)(\s*:)?', re.DOTALL)
"""A text between Gemma's quotes, one between usual ones, a key or a word."""
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
    known, fenced = {tool.name: _types(tool) for tool in tools}, _FENCE.match(text)
    text = fenced[1] if fenced else text
    for syntax in _SYNTAXES:
        try:
            calls = [(call.name.removeprefix("functions."), call.arguments) for call in syntax(text, known)]
            if calls and all(name in known and isinstance(arguments, dict) for name, arguments in calls):
                return [(name, json.dumps(each, ensure_ascii=False, allow_nan=False)) for name, each in calls]
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    raise NoCallError(text)


def _types(tool: Tool) -> Mapping[str, Any]:
    """Schemas of a tool's arguments by name."""
    properties = json.loads(tool.parameters).get("properties")
    return properties if isinstance(properties, dict) else {}


_Known = Mapping[str, Mapping[str, Any]]


def _json(text: str, known: _Known) -> Iterator[ReadCall]:  # noqa: ARG001
    """An object, a list of objects, or several of them: Hermes, Qwen3, Llama 3, Granite, Mistral Nemo, Command A."""
    at, text = 0, text.strip().strip(";")
    while at < len(text):
        value, at = _DECODER.raw_decode(text, at)
        for each in value if isinstance(value, list) else [value]:
            call = each.get("function", each) if isinstance(each, dict) and "name" not in each else each
            if not isinstance(call, dict):
                raise NoCallError(text)
            name = next((call[key] for key in _NAMES if key in call), None)
            arguments: Any = next((call[key] for key in _ARGUMENTS if key in call), {})
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
            found = _NAMED.match(text, at)
            if not found:
                raise NoCallError(text)
            arguments, at = _DECODER.raw_decode(text, found.end())
            yield ReadCall(found[1], arguments)


def _functions(text: str, known: _Known) -> Iterator[ReadCall]:
    """XML with names in tags: Qwen3.5, MiniMax M2, Seed-OSS."""
    for name, body in _FUNCTION.findall(text):
        yield ReadCall(name, _typed(_PARAMETER.findall(body), known.get(name, {})))


def _pairs(text: str, known: _Known) -> Iterator[ReadCall]:
    """XML with a key and a value for each argument: GLM, LongCat."""
    name = re.split(r"\s|<", text.strip(), maxsplit=1)[0]
    left = _PAIR.sub("", text.strip().removeprefix(name)).strip()
    if left:
        raise NoCallError(text)
    yield ReadCall(name, _typed([(key, value) for _, key, value in _PAIR.findall(text)], known.get(name, {})))


def _typed(pairs: Sequence[tuple[str, str]], types: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments whose values are written as text: a text is kept if the schema wants one, or it is no JSON."""
    arguments: dict[str, Any] = {}
    for key, written in pairs:
        value = written.removeprefix("\n").removesuffix("\n")
        schema = types.get(key.strip())
        kind = schema.get("type") if isinstance(schema, dict) else None
        arguments[key.strip()] = value if kind == "string" else _value(value)
    return arguments


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


def _python(text: str, known: _Known) -> Iterator[ReadCall]:  # noqa: ARG001
    """Calls in Python's syntax, in a list or not: LFM2, Llama 4, OLMo 3."""
    with warnings.catch_warnings(action="ignore"):  # about escapes in strings
        tree = ast.parse(text.strip(), mode="exec")
    for statement in tree.body:
        inner = statement.value if isinstance(statement, ast.Expr) else None
        for call in inner.elts if isinstance(inner, ast.List | ast.Tuple) else [inner]:
            if not isinstance(call, ast.Call) or call.args or not all(each.arg for each in call.keywords):
                raise NoCallError(text)
            arguments = {str(each.arg): _literal(each.value) for each in call.keywords}
            yield ReadCall(ast.unparse(call.func), arguments)


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
