"""Constraints of replies: a JSON schema, a regular expression or a grammar that the answer follows.

Importing this module does not import llguidance, which checks them (`engine.sequence.row_constraint`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from specchat.engine.errors import EngineError, check

LONGEST = 200_000
"""Characters of a constraint; llguidance takes a second for a schema of this length."""
FIELD = "constraint"
"""Field that errors name."""


class ConstraintKind(StrEnum):
    """What the text of a constraint is."""

    SCHEMA = "JSON schema"
    REGEX = "regular expression"
    GRAMMAR = "grammar"
    """Lark, or GBNF as in llama.cpp."""
    CALL = "call of a tool"
    """Lark with token ids, which `engine.sequence.call_grammar` makes for a vocabulary; no request has it."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the answer has to be, thinking before it excepted.

    Raises:
        EngineError: it is empty or too long.
    """

    kind: ConstraintKind
    """What `text` is."""
    text: str
    """The schema, expression or grammar."""

    def __post_init__(self) -> None:
        check(self.text.strip(), f"the {self.kind} is empty: write what the reply has to be", FIELD)
        size = len(self.text)
        check(size <= LONGEST, f"the {self.kind} has {size} characters: it must have at most {LONGEST}", FIELD)


JSON_OBJECT = Constraint(ConstraintKind.SCHEMA, '{"type": "object"}')
"""Any JSON object."""


def of_schema(schema: object) -> Constraint:
    """The constraint of a JSON schema, an object or its text."""
    return Constraint(ConstraintKind.SCHEMA, schema if isinstance(schema, str) else json.dumps(schema))


def of_response_format(wanted: object) -> Constraint | None:
    """The constraint of a `response_format` of OpenAI's API; None for free text.

    Raises:
        EngineError: it has another form.
    """
    match wanted:
        case {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return JSON_OBJECT
        case {"type": "json_schema", "json_schema": {"schema": schema}}:
            return of_schema(schema)
    raise EngineError("response_format needs json_schema with a name and a schema, or the type json_object", FIELD)


def one_of(choices: Sequence[str]) -> Constraint:
    """The constraint that the answer is one of these texts.

    Raises:
        EngineError: there is none, or one is empty.
    """
    check(choices and all(choices), "a choice is empty: give each choice a text", FIELD)
    return Constraint(ConstraintKind.GRAMMAR, f"start: {' | '.join(json.dumps(each) for each in choices)}")
