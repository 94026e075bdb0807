"""Reader of calls of tools while they are written: names, and the part of the arguments that cannot change any more."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from specchat.engine.request import Tool
from specchat.engine.round import Call
from specchat.engine.sequence.call_syntax import (
    FUNCTION,
    FUNCTION_END,
    NAMED,
    PAIR,
    PAIRS,
    PARAMETER,
    read_tags,
    schemas_of,
)

ID_CHARACTERS = 9
"""Characters of the id of a call; templates of Mistral want this number."""
_LONGEST_HEAD = 512
"""Characters before the arguments of a call. A text with more is left to the end."""
_BETWEEN = re.compile(
    r'(?:<\|tool_call:begin\|>\w*|[\s,;`\[\]}]|<[^<>=]*>|function(?=<)|functools|"(?:id|type)"\s*:\s*"[^"\\]*")*'
)
"""What may be before a call and after its arguments."""
_OBJECT = r'(?=\{\s*["}])'
_JSON = re.compile(
    r'\{\s*(?:"function"\s*:\s*\{\s*)?(?:"(?:id|type|tool_call_id)"\s*:\s*"[^"\\]*"\s*,\s*)*'
    rf'"(?:name|tool_name)"\s*:\s*"([^"\\]+)"\s*,\s*"(?:arguments|parameters)"\s*:\s*{_OBJECT}'
)
_WITH_OBJECT = _JSON, re.compile(NAMED.pattern + _OBJECT), re.compile(FUNCTION.pattern + _OBJECT)
"""Beginnings of calls whose arguments are a JSON object."""
_WITH_TAGS = (
    (re.compile(FUNCTION.pattern + "(?=<)"), PARAMETER),
    (re.compile(PAIRS.pattern + r"(?=\s*<\w*arg_key)"), PAIR),
)
"""Beginnings of calls whose arguments are in tags, with the pattern of an argument."""
_SIGN = re.compile(r'\\.|["{}\[\]\\]|[\x00-\x1f]', re.DOTALL)


def new_call(name: str, arguments: str) -> Call:
    """Make a call with a new id."""
    return Call(uuid4().hex[:ID_CHARACTERS], name, arguments)


class CallStream:
    """The calls in the text between two marks. Each call that is read while it is written has its arguments as JSON.

    The arguments of other syntaxes than JSON and tags are certain only at the end of the text.

    Args:
        tools: what may be called.
        most: number of calls to read.
    """

    def __init__(self, tools: Sequence[Tool], most: int) -> None:
        self._schemas = {tool.name: schemas_of(tool) for tool in tools}
        self._most = most
        self._at = 0
        """Characters that are read."""
        self._seen = 0
        """Characters of the text when it was read last."""
        self._tags: re.Pattern[str] | None = None
        """Pattern of the arguments of the current call, if they are in tags."""
        self._given: dict[str, Any] = {}
        """Arguments in tags of the current call."""
        self._depth = 0
        """Open brackets of the current call's arguments."""
        self._inside = False
        """Whether a call has begun whose arguments have not ended."""
        self.in_string = False
        """Whether the text read so far ends within a text in JSON."""
        self.begun: list[Call] = []
        """The calls so far, with the part of their arguments that cannot change any more."""
        self.parts: list[Call] = []
        """What was added to them and not taken yet."""

    def read(self, text: str) -> None:
        """Read on; the text begins with the one before."""
        while self._at < len(text) and self._most >= 0:
            if not self._inside and not self._begin(text):
                break
            if self._tags is not None:
                self._read_tags(text, self._tags)
            else:
                self._read_object(text)
            if self._inside:
                break
        self._seen = len(text)

    def complete(self, number: int, name: str, arguments: str) -> Call:
        """The call of this number in the text, with all of its arguments as `read_calls` has read them."""
        if number >= len(self.begun) or self.begun[number].name != name:
            return new_call(name, arguments)
        begun = self.begun[number]
        if not arguments.startswith(begun.arguments) and _same(begun.arguments, arguments):
            return begun
        return begun._replace(arguments=arguments)

    def _begin(self, text: str) -> bool:
        """Read what precedes the arguments of the next call; False without it."""
        between = _BETWEEN.match(text, self._at)
        start = between.end() if between else self._at
        found = next((found for head in _WITH_OBJECT if (found := head.match(text, start))), None)
        self._tags = None
        for head, pattern in () if found else _WITH_TAGS:
            if found := head.match(text, start):
                self._tags, self._given = pattern, {}
                break
        if found is None or found[1].removeprefix("functions.") not in self._schemas:
            if found or len(text) - self._at > _LONGEST_HEAD:
                self._most = -1
            return False
        self._most -= 1
        if self._most < 0:
            return False
        self._at, self._inside = found.end(), True
        self.begun.append(new_call(found[1].removeprefix("functions."), ""))
        self.parts.append(self.begun[-1])
        return True

    def _add(self, text: str) -> None:
        """Add to the arguments of the current call."""
        if text:
            self.parts.append(self.begun[-1]._replace(arguments=text))
            self.begun[-1] = self.begun[-1]._replace(arguments=self.begun[-1].arguments + text)

    def _read_object(self, text: str) -> None:
        """Read a JSON object up to its end; line breaks in its texts, which some models write, are escaped."""
        said, last = "", self._at
        for found in _SIGN.finditer(text, self._at):
            sign = found[0]
            if sign == "\\" and found.end() == len(text):  # what it escapes is not written yet
                break
            said += text[last : found.start()] + (json.dumps(sign)[1:-1] if self.in_string and sign < " " else sign)
            last = found.end()
            if sign == '"':
                self.in_string = not self.in_string
            elif not self.in_string and sign in "{[":
                self._depth += 1
            elif not self.in_string and sign in "}]":
                self._depth -= 1
                if not self._depth:
                    self._inside = False
                    break
        else:
            said, last = said + text[last:], len(text)
        self._at = last
        self._add(said)

    def _read_tags(self, text: str, pattern: re.Pattern[str]) -> None:
        """Read the arguments that are closed by their tags."""
        if ">" not in text[self._seen :] and self._given:
            return
        schemas = self._schemas[self.begun[-1].name]
        for key, value, end in read_tags(pattern, text, self._at, schemas, closed=True):
            self._given.setdefault(key, value)
            self._at = end
        if self._given:
            said = json.dumps(self._given, ensure_ascii=False).removesuffix("}")
            self._add(said[len(self.begun[-1].arguments) :])
        self._inside = pattern is PAIR or not FUNCTION_END.match(text, self._at)


def _same(first: str, second: str) -> bool:
    try:
        return bool(json.loads(first) == json.loads(second))
    except ValueError:
        return False
