"""Replies whose text has marks around the thinking: from other servers, and in older records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from specchat.engine import Admitted, Finished, Given, Record, Round, Thinking, parser_of


class Unmarked:
    """Rewrites the records of a reply without the marks in its text, as the engine writes records.

    Args:
        marks: The marks.
    """

    def __init__(self, marks: Thinking) -> None:
        self._parser = parser_of(marks)

    def given(self, token: Given) -> Given:
        """The next token of the beginning that the request prescribes."""
        return token._replace(text=self._parser.feed(token.text), thinking=self._parser.thinking)

    def round(self, record: Round) -> Round:
        """The next round."""
        emitted = [(self._parser.feed(text), self._parser.thinking) for text in record.said]
        pieces, thinking = [text for text, _ in emitted], tuple(flag for _, flag in emitted)
        return replace(
            record,
            pieces=(*pieces[: record.accepted], *record.pieces[record.accepted :]),
            last_piece=record.last_piece if record.last is None else pieces[-1],
            thinking=thinking if any(thinking) else (),
        )

    def finished(self, record: Finished) -> Finished:
        """The end of the reply."""
        tail = self._parser.feed(record.tail) + self._parser.end()
        return replace(record, tail=tail, thinking=self._parser.thinking and bool(tail))


def unmarked(records: Iterable[Record]) -> Iterator[Record]:
    """The records of any number of replies, without marks."""
    marked: dict[str, Unmarked] = {}
    for record in records:
        if isinstance(record, Admitted) and record.thinking is not None:
            one = marked[record.request_id] = Unmarked(record.thinking)
            yield replace(record, thinking=None, given=tuple(map(one.given, record.given)))
        elif isinstance(record, Round) and record.request_id in marked:
            yield marked[record.request_id].round(record)
        elif isinstance(record, Finished) and record.request_id in marked:
            yield marked[record.request_id].finished(record)
        else:
            yield record
