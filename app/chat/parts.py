"""The parts of a message: text, thinking and calls of tools, in order."""

import json
from collections.abc import Iterable, Iterator
from itertools import groupby, repeat

from specchat.engine import Admitted, Finished, Measured, MessagePart, PartKind, Record, Round

_LINE = 200
"""Characters of a call or a result that are shown."""
_SHORT = 50
"""Characters of JSON that is shown on one line."""
_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
KINDS = {False: PartKind.TEXT, True: PartKind.THINKING}


def joined(parts: Iterable[MessagePart]) -> Iterator[MessagePart]:
    """The parts without empty ones, and with one part for several texts of the same kind in a row."""
    kinds = groupby((part for part in parts if part.text), key=lambda part: (part.kind, part.name, part.call_id))
    for (kind, name, call_id), same in kinds:
        yield MessagePart(kind, "".join(part.text for part in same), name, call_id)


def fields(call: MessagePart) -> list[tuple[str, str, str]]:
    """Name, type and value of each argument of a call; the types are those of JSON."""
    try:
        given = dict(json.loads(call.text))
    except (ValueError, TypeError):
        return [("arguments", "text", call.text)]
    return [(name, _type(value), value if isinstance(value, str) else _json(value)) for name, value in given.items()]


def _type(value: object) -> str:
    return "null" if value is None else _TYPES[type(value)]


def _json(value: object) -> str:
    line = json.dumps(value, ensure_ascii=False)
    return line if len(line) <= _SHORT else json.dumps(value, ensure_ascii=False, indent=2)


def tool_line(part: MessagePart) -> str:
    """A call or a result on one line, cut."""
    text = " ".join(part.text[: 4 * _LINE].split())
    cut = text if len(text) <= _LINE and len(part.text) <= 4 * _LINE else f"{text[:_LINE]}…"
    return f"{'→' if part.kind is PartKind.CALL else '▸'} {part.name} {cut}"


def parts_of(record: Record | Measured, carried: int = 0) -> Iterable[MessagePart]:
    """What a record adds to a reply; the first `carried` given tokens are part of the reply already."""
    said: Iterable[tuple[str, bool]] = ()
    calls = record.calls if isinstance(record, Round | Finished) else ()
    if isinstance(record, Round) and not record.thinking and not calls:
        return (MessagePart(PartKind.TEXT, record.text),)
    if isinstance(record, Round):
        said = zip(record.said, record.thinking or repeat(False))  # noqa: B905  one is endless
    elif isinstance(record, Admitted):
        said = ((token.text, token.thinking) for token in record.given[carried:])
    elif isinstance(record, Finished):
        said = [(record.tail, record.thinking)]
    texts = (MessagePart(KINDS[thinking], text) for text, thinking in said)
    return (*joined(texts), *(MessagePart(PartKind.CALL, call.arguments, call.name, call.id) for call in calls))
