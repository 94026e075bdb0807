"""Messages, tools and calls of the OpenAI protocol: what a server gets, and the calls that it streams."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

from specchat.engine import Call, EngineError, Finished, FinishReason, Message, PartKind, Tool, tool_of

MOST_CALLED = 1 << 20
"""Most characters of all calls of a reply."""
COMPLETE = (FinishReason.EOS, FinishReason.STOP)


def turns(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages in the format of the protocol, with thinking as most servers take it, and results as messages."""
    made: list[dict[str, Any]] = []
    for message in messages:
        results = message.parts_of(PartKind.RESULT)
        made += [{"role": "tool", "tool_call_id": each.call_id, "content": each.text} for each in results]
        if results and not message.content:
            continue
        turn: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.thinking:
            turn["reasoning_content"] = message.thinking
        if calls := message.parts_of(PartKind.CALL):
            called = [(each.call_id, {"name": each.name, "arguments": each.text}) for each in calls]
            turn["content"] = message.content or None
            turn["tool_calls"] = [{"id": name, "type": "function", "function": each} for name, each in called]
        made.append(turn)
    return made


def offered(tools: Sequence[Tool]) -> dict[str, Any]:
    """The field for tools that the model may call; empty without any."""
    return {"tools": list(map(tool_of, tools))} if tools else {}


class CallParts:
    """Puts the calls of a reply together from the parts that a server streams."""

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._places: dict[object, int] = {}
        """Place of the latest call with each index, which some servers give to several calls, or leave out."""
        self._size = 0

    def add(self, parts: Sequence[Any]) -> bool:
        """Add the parts in a chunk; returns whether there are any.

        Raises:
            EngineError: there is too much of them.
            AttributeError, LookupError, TypeError: they are something else.
        """
        for part in parts:
            function, index = part.get("function") or {}, part.get("index")
            arguments = function.get("arguments") or ""
            arguments = json.dumps(arguments) if isinstance(arguments, dict) else arguments
            new = Call(part.get("id") or "", function.get("name") or "", arguments)
            if not all(isinstance(text, str) for text in new):
                raise TypeError
            if index not in self._places or new.id not in ("", self._calls[self._places[index]].id):
                self._places[index] = len(self._calls)
                self._calls.append(Call(new.id or uuid4().hex[:9], "", ""))
            call = self._calls[self._places[index]]
            grown = call._replace(name=call.name or new.name, arguments=call.arguments + arguments)
            self._calls[self._places[index]] = grown
            self._size += sum(map(len, new)) + 1
            if self._size > MOST_CALLED:
                raise EngineError(f"the server sent calls of more than {MOST_CALLED:,} characters: ask again")
        return bool(parts)

    def finished(self, end: Finished) -> Finished:
        """The end of the reply with its calls; an error if one of them is invalid. A reply that was cut has none."""
        if end.reason not in COMPLETE:
            return end
        try:
            return replace(end, calls=tuple(map(_checked, self._calls)))
        except (EngineError, ValueError, RecursionError) as error:
            message = f"the server sent a call that cannot be made ({error}): ask again"
            return replace(end, reason=FinishReason.ERROR, message=message)


def _checked(call: Call) -> Call:
    """A call whose arguments are the text of a JSON object.

    Raises:
        EngineError, ValueError, RecursionError: it has no name of a tool, or other arguments.
    """
    Tool(call.name)
    call = call._replace(arguments=call.arguments or "{}")
    if not isinstance(json.loads(call.arguments), dict):
        raise ValueError(f"the arguments of {call.name} are no JSON object")
    return call
