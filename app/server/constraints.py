"""Constraints of replies in request bodies: `response_format` of OpenAI's API, and `structured_outputs` of vLLM."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from specchat import engine
from specchat.app.server.errors import ApiError
from specchat.app.server.protocol import Body, ResponseFormat, StructuredOutputs

Stated = tuple[str, Callable[[Any], engine.Constraint | None], Any]
"""A field of a body, what makes a constraint of its value, and the value."""


def constraint_of(body: Body) -> engine.Constraint | None:
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
            if made is not None:
                engine.check_constraint(made)
        except engine.EngineError as error:
            raise ApiError(400, str(error), param=field) from None
        return made
    return None


def _of_format(wanted: ResponseFormat | None) -> Iterator[Stated]:
    if wanted is not None and wanted.type != "text":
        yield "response_format", engine.of_response_format, wanted.model_dump(by_alias=True)


def _of_outputs(wanted: StructuredOutputs | None) -> Iterator[Stated]:
    if wanted is None:
        return
    given = wanted.model_dump(by_alias=True, exclude_none=True)
    stated = {key: value for key, value in given.items() if value is not False}
    if not stated:
        text = f"structured_outputs states no constraint: give it one of {', '.join(_MAKERS)}"
        raise ApiError(400, text, param="structured_outputs")
    yield from ((f"structured_outputs.{key}", _MAKERS[key], value) for key, value in stated.items())


_MAKERS: dict[str, Callable[[Any], engine.Constraint | None]] = {
    "json": engine.of_schema,
    "json_object": lambda _: engine.JSON_OBJECT,
    "regex": partial(engine.Constraint, engine.ConstraintKind.REGEX),
    "choice": engine.one_of,
    "grammar": partial(engine.Constraint, engine.ConstraintKind.GRAMMAR),
}
"""Makes the constraint of each field of `structured_outputs`."""
