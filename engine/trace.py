"""The trace format: one JSON object per line, so that a reply can be stored, replayed and analysed without a model.

The first line is `{"record": "trace", "version": 1}`. Every other line is a `Request` or an event, under `record` its
type's name in lower case. Unknown fields are an error: a newer format has a newer version.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO, get_args

from engine.errors import EngineError
from engine.events import Candidate, Detail, Event, Fate, FinishReason
from engine.request import Message, Request, Sampling

VERSION = 1
Record = Event | Request

_TYPES: dict[str, type] = {kind.__name__.lower(): kind for kind in get_args(Record)}
_NESTED = {"sampling": Sampling, "messages": Message, "detail": Detail}
_LISTS = ("target", "draft", "residual")


def to_json(record: Record) -> str:
    """One line of a trace, without its line end."""
    return json.dumps({"record": type(record).__name__.lower(), **_plain(record)}, ensure_ascii=False)


def from_json(line: str) -> Record:
    """The record that `to_json` wrote.

    Raises:
        ValueError: the line is no record of this version.
    """
    try:
        values = json.loads(line)
        kind = _TYPES[values.pop("record")]
        return kind(**{name: _revive(kind, name, value) for name, value in values.items()})  # type: ignore[no-any-return]
    except (KeyError, TypeError, AttributeError, ValueError, EngineError) as error:
        raise ValueError(f"not a record: {error}") from error


class TraceWriter:
    """Writes a trace file line by line; what is written is on disk after every request and on close.

    Raises:
        EngineError: the file exists already or cannot be created.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file: TextIO = path.open("x", encoding="utf-8")
        except FileExistsError:
            raise EngineError(f"{path} exists already: name another file for the trace") from None
        except OSError as error:
            raise EngineError(f"{path} cannot be written: {error.strerror or error}") from None
        self._file.write(json.dumps({"record": "trace", "version": VERSION}) + "\n")

    def write(self, record: Record) -> None:
        """Append one record."""
        self._file.write(to_json(record) + "\n")

    def close(self) -> None:
        """Flush and close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def read_trace(path: Path) -> Iterator[Record]:
    """The records of a trace file, in order.

    A last line without its line end (the writer was killed) is left out.

    Raises:
        EngineError: the file cannot be read, is no trace, or has a line that is no record.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise EngineError(f"{path} cannot be read as a trace: {reason}") from None
    lines = text.split("\n")[:-1]
    if not lines or not _is_header(lines[0]):
        raise EngineError(f"{path} is not a specchat trace of version {VERSION}: record one with specchat ask --trace")
    for number, line in enumerate(lines[1:], start=2):
        try:
            yield from_json(line)
        except ValueError:
            raise EngineError(f"{path} is damaged: line {number} is not a trace record") from None


def _is_header(line: str) -> bool:
    try:
        return bool(json.loads(line) == {"record": "trace", "version": VERSION})
    except ValueError:
        return False


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _revive(kind: type, name: str, value: Any) -> Any:
    if name in _NESTED and not isinstance(value, int):
        nested = _NESTED[name]
        if isinstance(value, list):
            return tuple(_build(nested, item) for item in value)
        return _build(nested, value)
    if name == "last_fate" and value is not None:
        return Fate(value)
    if name == "reason" and "reason" in {f.name for f in fields(kind)}:
        return FinishReason(value)
    return tuple(value) if isinstance(value, list) else value


def _build(kind: type, values: dict[str, Any]) -> Any:
    if kind is Detail:
        values = {k: tuple(Candidate(*c) for c in v) if k in _LISTS else v for k, v in values.items()}
    return kind(**values)
