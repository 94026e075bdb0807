"""What a reply has to follow, as a user states it."""

from collections.abc import Sequence

from specchat.app.errors import UsageError
from specchat.engine import JSON_OBJECT, Constraint, ConstraintKind, check_constraint, one_of


def constraint_of(
    schema: str | None = None,
    json_object: bool = False,
    regex: str | None = None,
    grammar: str | None = None,
    choice: Sequence[str] = (),
) -> Constraint | None:
    """The constraint that one of these states; None without any.

    Args:
        schema: JSON schema.
        json_object: whether the reply is any JSON object.
        regex: regular expression.
        grammar: grammar in Lark or GBNF.
        choice: texts of which the reply is one.

    Raises:
        UsageError: several are stated.
        EngineError: the constraint is not valid.
    """
    stated: list[Constraint] = [JSON_OBJECT] if json_object else []
    texts = {ConstraintKind.SCHEMA: schema, ConstraintKind.GRAMMAR: grammar, ConstraintKind.REGEX: regex}
    stated += [Constraint(kind, text) for kind, text in texts.items() if text is not None]
    stated += [one_of(choice)] if choice else []
    if len(stated) > 1:
        raise UsageError("a reply follows one of --schema, --json-object, --regex, --grammar and --choice: give one")
    for each in stated:
        check_constraint(each)
    return next(iter(stated), None)
