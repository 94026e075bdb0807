"""Trace format: one JSON object per line, to store, replay and analyse replies without a model.

The first line is `{"record": "trace", "version": 7}`. Every other line is a `Request` or an event, with its type's name
in lower case under `record`; the lines of a stored reply include a `Measured`. Unknown fields are an error: a newer
format has a newer version; versions 1 (no trees), 2 (no plain passes, no frequency penalty, no `Detail.probability`, no
reply that begins with given tokens), 3 (no thinking, no recommended sampling, and no replies of other servers: no
unknown fate, no `Totals`), 4 (thinking in the text, between the marks of `Admitted.thinking`; no `Measured`, no
`Round.context`), 5 (messages with one text and one thinking instead of parts) and 6 (no tools) are also read.
`assets/trace.schema.json` describes every field. Reading checks every field against its declared type, so that a
damaged trace fails here and not halfway through a replay.
"""

from __future__ import annotations

import json
import re
import sys
import types
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import StrEnum
from functools import cache
from math import isfinite
from pathlib import Path
from types import TracebackType
from typing import Any, Self, get_args, get_origin, get_type_hints

from specchat.engine.errors import EngineError
from specchat.engine.events import MOST_DRAFTED, Admitted, Event, Measured, Totals
from specchat.engine.files import create_text
from specchat.engine.request import Message, Request
from specchat.engine.round import Round

VERSION = 7
READABLE = (1, 2, 3, 4, 5, 6, VERSION)
Record = Event | Request
StoredRecord = Record | Measured
"""What a line of a stored reply may be."""

_TYPES: dict[str, type] = {kind.__name__.lower(): kind for kind in get_args(StoredRecord)}
EARLIER: dict[type, dict[str, type]] = {Message: {"content": str, "thinking": str}}
"""Fields of earlier versions that are read."""
_LEFT_OUT = ("proposers", "thinking", "calls", "call_parts", "name", "call_id")
"""Fields that are not written if they are empty, as in most rounds and messages."""
_HALVES = re.compile("[\ud800-\udfff]")


def to_json(record: StoredRecord) -> str:
    """Serialise a record to one line, without line end; lone surrogates are escaped, so it can be encoded as UTF-8."""
    line = _ENCODER.encode({"record": type(record).__name__.lower(), **_values(record)})
    return line if line.isascii() else _HALVES.sub(lambda half: f"\\u{ord(half[0]):04x}", line)


def from_json(line: str) -> StoredRecord:
    """Parse a line that `to_json` wrote.

    Raises:
        ValueError: the line is not a record of this version, or its fields contradict each other.
    """
    try:
        values = json.loads(line)
        record: StoredRecord = _record(_TYPES[values.pop("record")], values)
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError, RecursionError, EngineError) as error:
        raise ValueError(f"not a record: {error}") from error
    if isinstance(record, Round):
        _check(record)
    elif isinstance(record, Totals) and not all(0 <= a <= d <= MOST_DRAFTED for d, a in record.steps or ()):
        raise ValueError(f"the steps of {record.request_id} contradict themselves")
    elif isinstance(record, Measured) and record.gain is not None and record.gain.measured <= 0:
        raise ValueError(f"the speedup of {record.request_id} is not positive")
    return record


class TraceWriter:
    """Writer of a trace file; each record is written to the operating system at once, so a kill leaves whole lines.

    As a context manager, it removes the file after an error before the reply: the same command can then be repeated.

    Raises:
        EngineError: the file exists already, cannot be created, or the disk is full.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._has_reply = False
        try:
            self._file = create_text(path, buffering=1)
        except FileExistsError:
            raise EngineError(f"{path} exists already: name another file for the trace") from None
        except OSError as error:
            raise self._failure(error) from None
        try:
            self._put(json.dumps({"record": "trace", "version": VERSION}))
        except EngineError:
            path.unlink(missing_ok=True)
            raise

    def write(self, record: Record) -> None:
        """Append one record."""
        self._put(to_json(record))
        self._has_reply |= isinstance(record, (Admitted, Round))

    def close(self) -> None:
        """Close the file."""
        try:
            self._file.close()
        except OSError as error:
            raise self._failure(error) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            self.close()
        finally:
            if error is not None and not self._has_reply:
                self._path.unlink(missing_ok=True)

    def _put(self, line: str) -> None:
        try:
            self._file.write(line + "\n")
        except OSError as error:
            raise self._failure(error) from None

    def _failure(self, error: OSError) -> EngineError:
        return EngineError(f"{self._path} cannot be written: {error.strerror or error}")


def read_trace(path: Path) -> Iterator[Record]:
    """Yield the records of a trace file, in order.

    A last line without line end (the writer was killed) is skipped.

    Raises:
        EngineError: the file cannot be read, is not a trace, or has a line that is not a record.
    """
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except OSError as error:
        raise EngineError(f"{path} cannot be read as a trace: {error.strerror or error}") from None
    if not lines or not _is_header(lines[0]):
        raise EngineError(f"{path} is not a specchat trace of version {VERSION}: record one with specchat ask --trace")
    for number, line in enumerate(lines[1:], start=2):
        try:
            record = from_json(line.decode())
        except ValueError:
            raise EngineError(f"{path} is damaged: line {number} is not a trace record") from None
        if not isinstance(record, Measured):
            yield record


def _is_header(line: bytes) -> bool:
    try:
        return any(json.loads(line) == {"record": "trace", "version": version} for version in READABLE)
    except (ValueError, RecursionError):
        return False


def _values(record: Any) -> dict[str, Any]:
    """Fields of a dataclass by name, one level deep; the encoder calls it for nested dataclasses."""
    values = {name: getattr(record, name) for name in _names(record.__class__)}
    for name in _LEFT_OUT:
        if values.get(name) in ("", ()):
            del values[name]
    return values


_ENCODER = json.JSONEncoder(ensure_ascii=False, default=_values)


@cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def _record(kind: type, values: dict[str, Any]) -> Any:
    hints = _hints(kind) | EARLIER.get(kind, {})
    return kind(**{name: _typed(hints[name], value) for name, value in values.items()})


def _typed(hint: Any, value: Any) -> Any:
    """Convert a JSON value to a field of type `hint`; TypeError or ValueError if it does not fit."""
    if hint is float:
        if type(value) not in (int, float):
            raise TypeError(f"{value!r} is not a number")
        if not isfinite(value):
            raise ValueError(f"{value!r} is not finite")
        return float(value)
    if hint in (int, str, bool):
        if type(value) is not hint:
            raise TypeError(f"{value!r} is not of type {hint.__name__}")
        # Interning the repeated strings of a chat's rounds takes a fifth less memory.
        return sys.intern(value) if hint is str else value
    if isinstance(hint, types.UnionType):  # unions in records are "X | None", and of plain types
        arms = get_args(hint)
        return None if value is None else _typed(next((arm for arm in arms if type(value) is arm), arms[0]), value)
    if get_origin(hint) is tuple:
        if type(value) is not list:
            raise TypeError(f"{value!r} is not a list")
        first, *others = get_args(hint)
        if others == [...]:
            return tuple(_typed(first, item) for item in value)
        return tuple(_typed(each, item) for each, item in zip((first, *others), value, strict=True))
    if issubclass(hint, StrEnum):
        return hint(value)
    if isinstance(hint, type) and is_dataclass(hint):
        return _record(hint, value)
    kinds = _hints(hint).values()
    if len(value) > len(kinds):
        raise TypeError(f"{value!r} is too long")
    return hint(*(_typed(each, item) for each, item in zip(kinds, value, strict=False)))


_hints = cache(get_type_hints)


def _check(record: Round) -> None:
    """Check the invariants that readers of a round rely on."""
    drafted, tested = len(record.drafted), record.tested
    judged = len(record.p) == len(record.q) == len(record.u) == len(record.beta) == (0 if record.observed else tested)
    judged = judged and tested <= drafted == len(record.pieces)
    last = (record.last is None) == (record.last_fate is None)
    beside = len(record.refused) in (0, tested)
    named = all(0 <= each.shared <= each.length for each in record.proposers)
    if not (judged and last and beside and named and 0 <= record.accepted <= tested <= record.accepted + 1):
        raise ValueError(f"round {record.number} of {record.request_id} contradicts itself")
