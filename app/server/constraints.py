"""Constraints of replies in request bodies: `response_format` of OpenAI's API, and `structured_outputs` of vLLM."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from specchat.app.server.errors import ApiError
from specchat.app.server.protocol import Body, ResponseFormat, StructuredOutputs
from specchat.engine import JSON_OBJECT, Constraint, ConstraintKind, EngineError, check_constraint, one_of

Stated = tuple[str, Callable[[Any], Constraint], Any]
"""A field of a body, what makes a constraint of its value, and the value."""


def constraint_of(body: Body) -> Constraint | None:
    """The constraint of a body's replies; None without one. To compile it may take a second.

    Raises:
        ApiError: it is not valid, or several are stated.
    """
    stated = [*_of_format(body.response_format), *_of_outputs(body.structured_outputs)]
    for field, make, value in stated:
        if len(stated) > 1:
            raise ApiError(400, "a reply follows one constraint: state one", param=field.partition(".")[0])
        try:
            made = make(value)
            check_constraint(made)
        except EngineError as error:
            raise ApiError(400, str(error), param=field) from None
        return made
    return None


def _of_format(wanted: ResponseFormat | None) -> Iterator[Stated]:
    if wanted is None or wanted.type == "text":
        return
    if wanted.type == "json_object":
        yield "response_format", _object, True
    elif wanted.json_schema is None:
        text = "response_format needs json_schema with a name and a schema"
        raise ApiError(400, text, param="response_format.json_schema")
    else:
        yield "response_format", _schema, wanted.json_schema.json_schema


def _of_outputs(wanted: StructuredOutputs | None) -> Iterator[Stated]:
    if wanted is None:
        return
    given = wanted.model_dump(by_alias=True, exclude_none=True)
    stated = {key: value for key, value in given.items() if value is not False}
    if not stated:
        text = f"structured_outputs states no constraint: give it one of {', '.join(_MAKERS)}"
        raise ApiError(400, text, param="structured_outputs")
    yield from ((f"structured_outputs.{key}", _MAKERS[key], value) for key, value in stated.items())


def _schema(schema: Mapping[str, Any] | str) -> Constraint:
    return Constraint(ConstraintKind.SCHEMA, schema if isinstance(schema, str) else json.dumps(schema))


def _object(wanted: bool) -> Constraint:  # noqa: ARG001
    return JSON_OBJECT


_MAKERS: dict[str, Callable[[Any], Constraint]] = {
    "json": _schema,
    "json_object": _object,
    "regex": partial(Constraint, ConstraintKind.REGEX),
    "choice": one_of,
    "grammar": partial(Constraint, ConstraintKind.GRAMMAR),
}
"""Makes the constraint of each field of `structured_outputs`."""
