"""The parts of a message: text and thinking, in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from specchat.engine import Admitted, Finished, Measured, MessagePart, PartKind, Record, Round

KINDS = {False: PartKind.TEXT, True: PartKind.THINKING}


def joined(parts: Iterable[MessagePart]) -> Iterator[MessagePart]:
    """The parts without empty ones, and with one part for several of the same kind in a row."""
    for kind, same in groupby((part for part in parts if part.text), key=lambda part: part.kind):
        yield MessagePart(kind, "".join(part.text for part in same))


def parts_of(record: Record | Measured, carried: int = 0) -> Iterable[MessagePart]:
    """What a record adds to a reply; the first `carried` given tokens are part of the reply already."""
    said: Iterable[tuple[str, bool]] = ()
    if isinstance(record, Round) and not record.thinking:
        return (MessagePart(PartKind.TEXT, record.text),)
    if isinstance(record, Round):
        said = zip(record.said, record.thinking, strict=True)
    elif isinstance(record, Admitted):
        said = ((token.text, token.thinking) for token in record.given[carried:])
    elif isinstance(record, Finished):
        said = [(record.tail, record.thinking)]
    return joined(MessagePart(KINDS[thinking], text) for text, thinking in said)
