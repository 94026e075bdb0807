"""Entries of data sets: conversations with what their replies have to follow, from files of several kinds.

A file is JSON or one JSON object per line. The keys of an object tell its kind:

- `messages` with `role` and `content`, as in OpenAI's API, also in the `body` of a batch file; `conversations` with
  `from` and `value`, as in ShareGPT; `prompt`, one text;
- `turns` and `choices`, as in MT-bench and Spec-Bench: questions and answers;
- a chat that `specchat export` wrote as JSON.

`response_format`, as in OpenAI's API, or `json_schema`, a schema or its text as in JSONSchemaBench, is what the last
reply has to follow.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specchat.engine.errors import EngineError
from specchat.engine.request import Constraint, Message, of_response_format, of_schema

_ROLES = dict.fromkeys(("user", "human"), "user") | dict.fromkeys(("assistant", "gpt", "model"), "assistant")
_ROLES |= {"system": "system", "developer": "system"}
UNKNOWN = "it has no conversation that is known here (messages, conversations, prompt or turns)"
MISSHAPEN = (KeyError, TypeError, ValueError, AttributeError, IndexError)
"""Raised for entries of another kind."""
Entries = Sequence[tuple[Path, list[tuple[str, object]]]]
"""Files, each with its entries and their locations."""


def read_entries(files: Sequence[Path]) -> Entries:
    """The entries of files of any known kind.

    Raises:
        EngineError: a file cannot be read.
    """
    return [(file, [(where, _unwrapped(entry)) for where, entry in _entries(file)]) for file in files]


def _unwrapped(entry: object) -> object:
    """An entry with the fields of its body, if it is of a batch file."""
    body = entry.get("body") if isinstance(entry, dict) else None
    return {**entry, **body} if isinstance(entry, dict) and isinstance(body, dict) else entry


def _entries(file: Path) -> list[tuple[str, object]]:
    """Each entry of a file, with its location; None for a line that is not JSON."""
    try:
        content = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise EngineError(f"{file} is not UTF-8 text: give JSON, or one JSON object per line") from None
    except OSError as error:
        raise EngineError(f"{file} cannot be read: {error.strerror or error}") from None
    whole = _parsed(content)
    if isinstance(whole, list):
        return [(f"{file.name}, entry {number}", entry) for number, entry in enumerate(whole, 1)]
    if isinstance(whole, dict):
        return [(file.name, whole)]
    lines = enumerate(content.split("\n"), 1)  # JSON may hold other line separators
    return [(f"{file.name}, line {number}", _parsed(line)) for number, line in lines if line.strip()]


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def conversation_of(entry: Mapping[str, Any]) -> tuple[Message, ...]:
    """The conversation in an object of any known kind.

    Raises:
        EngineError or one of `MISSHAPEN`: it is of another kind.
    """
    said: list[tuple[str, Any]] = []
    if entry.get("format") == "specchat-chat":
        for turn in entry["turns"]:
            said.append(("user", turn["prompt"]))
            if turn["chosen"] is not None:
                said.append(("assistant", turn["replies"][turn["chosen"]]["text"]))
    elif "messages" in entry:
        said = [(each["role"], each["content"]) for each in entry["messages"]]
    elif "conversations" in entry:
        said = [(each["from"], each["value"]) for each in entry["conversations"]]
    elif "prompt" in entry:
        said = [("user", entry["prompt"])]
    else:
        for question, answer in zip(entry["turns"], entry["choices"][0]["turns"], strict=False):
            said += [("user", question), ("assistant", answer)]
    if not all(isinstance(text, str) for _, text in said):
        raise TypeError
    return tuple(Message(_ROLES[role], text) for role, text in said)


def constraint_of(entry: Mapping[str, Any]) -> Constraint | None:
    """What the last reply of an entry has to follow; None for free text.

    Raises:
        EngineError: it is not in the form of a constraint.
    """
    if (wanted := entry.get("response_format")) is not None:
        return of_response_format(wanted)
    schema = entry.get("json_schema")
    return None if schema is None else of_schema(schema)
