"""Constraints of replies in request bodies: `response_format` of OpenAI's API, and `structured_outputs` of vLLM."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from specchat.app.server.protocol import ApiError, Body
from specchat.engine import JSON_OBJECT, Constraint, ConstraintKind, EngineError, check_constraint, one_of


def constraint_of(body: Body) -> Constraint | None:
    """The constraint of a body's replies; None without one. To compile it may take a second.

    Raises:
        ApiError: it is not valid, or several are stated.
    """
    for field, read in (("response_format", _of_format), ("structured_outputs", _of_outputs)):
        try:
            if stated := [*read(getattr(body, field))]:
                if len(stated) > 1 or (field == "response_format" and body.structured_outputs):
                    raise ApiError(400, "a reply follows one constraint: state one", param=field)
                check_constraint(stated[0])
                return stated[0]
        except EngineError as error:
            raise ApiError(400, str(error), param=field) from None
    return None


def _of_format(wanted: Any) -> Iterator[Constraint]:
    if wanted is None or wanted.type == "text":
        return
    if wanted.type == "json_object":
        yield JSON_OBJECT
    elif wanted.json_schema is None:
        text = "response_format needs json_schema with a name and a schema"
        raise ApiError(400, text, param="response_format.json_schema")
    else:
        yield _schema(wanted.json_schema.json_schema)


def _of_outputs(wanted: Any) -> Iterator[Constraint]:
    if wanted is None:
        return
    if wanted.json_schema is not None:
        yield _schema(wanted.json_schema)
    if wanted.json_object:
        yield JSON_OBJECT
    if wanted.choice is not None:
        yield one_of(wanted.choice)
    for kind, text in ((ConstraintKind.REGEX, wanted.regex), (ConstraintKind.GRAMMAR, wanted.grammar)):
        if text is not None:
            yield Constraint(kind, text)


def _schema(schema: Mapping[str, Any] | str) -> Constraint:
    return Constraint(ConstraintKind.SCHEMA, schema if isinstance(schema, str) else json.dumps(schema))
