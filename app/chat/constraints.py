"""What a reply has to follow, as a user states it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from specchat.app.chat.attachments import read_text_file
from specchat.app.errors import UsageError
from specchat.engine import JSON_OBJECT, Constraint, ConstraintKind, check_constraint, one_of


def constraint_of(
    schema: Path | None = None,
    json_object: bool = False,
    regex: str | None = None,
    grammar: Path | None = None,
    choice: Sequence[str] = (),
) -> Constraint | None:
    """The constraint that one of these states; None without any.

    Args:
        schema: file with a JSON schema.
        json_object: whether the reply is any JSON object.
        regex: regular expression.
        grammar: file with a grammar in Lark or GBNF.
        choice: texts of which the reply is one.

    Raises:
        UsageError: several are stated, or a file cannot be read.
        EngineError: the constraint is not valid.
    """
    stated: list[Constraint] = [JSON_OBJECT] if json_object else []
    for kind, path in ((ConstraintKind.SCHEMA, schema), (ConstraintKind.GRAMMAR, grammar)):
        stated += [Constraint(kind, read_text_file(path, str(path)))] if path else []
    stated += [] if regex is None else [Constraint(ConstraintKind.REGEX, regex)]
    stated += [one_of(choice)] if choice else []
    if len(stated) > 1:
        raise UsageError("a reply follows one of --schema, --json-object, --regex, --grammar and --choice: give one")
    for each in stated:
        check_constraint(each)
    return next(iter(stated), None)
