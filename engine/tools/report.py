"""Shared report layer of the tools: tables for people, one JSON form for machines, CSV.

Tables are drawn by rich, which is there wherever transformers is.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

VERSION = 1
"""Version of the JSON objects, raised when the meaning of a field changes."""
_GAP = 2
"""Spaces between columns."""
_WIDEST = 1 << 16
"""Width of the console that a table is drawn on, more than any takes."""

Columns = Mapping[str, Callable[[Any], str]]
"""Header of each column, and the function that gives its text for an item."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of texts.

    Where standard output is a terminal that is too narrow for all columns, they are drawn in several parts, each of
    which repeats the name columns.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    names: int = 1
    """Number of leading columns that name a row: aligned left, repeated in each part."""

    @classmethod
    def of(cls, items: Iterable[Any], columns: Columns, title: str = "", names: int = 1) -> Table:
        """A table with a row per item."""
        return cls(tuple(columns), [[show(item) for show in columns.values()] for item in items], title, names)

    def text(self, width: int | None = None) -> str:
        """Draw it.

        Args:
            width: of the terminal; if None, that of standard output, unlimited for a file or pipe.
        """
        if width is None and sys.stdout.isatty():
            width = shutil.get_terminal_size().columns
        parts = [self._draw(columns) for columns in self._parts(width)]
        return "\n".join([*([self.title] if self.title else []), "\n\n".join(parts)])

    def _parts(self, width: int | None) -> list[list[int]]:
        """Columns of each part."""
        sizes = [max(map(len, column)) + _GAP for column in zip(self.header, *self.rows, strict=True)]
        names = list(range(self.names))
        parts = [names]
        for column in range(self.names, len(sizes)):
            used = sum(sizes[each] for each in (*parts[-1], column)) - _GAP
            if width is not None and used > width and parts[-1] != names:
                parts.append(names)
            parts[-1] = [*parts[-1], column]
        return parts

    def _draw(self, columns: Sequence[int]) -> str:
        from rich import box
        from rich.console import Console
        from rich.table import Table as RichTable
        from rich.text import Text

        header = any(self.header)
        table = RichTable(
            box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 0, 0, 1), show_header=header
        )
        for column in columns:
            justify: Any = "left" if column < self.names else "right"
            table.add_column(Text(self.header[column]), justify=justify, no_wrap=True)
        for row in self.rows:
            table.add_row(*(Text(row[column]) for column in columns))
        out = io.StringIO()
        Console(file=out, width=_WIDEST, color_system=None, legacy_windows=False).print(table)
        return "\n".join(line.rstrip() for line in out.getvalue().rstrip("\n").split("\n"))


def paragraphs(*parts: str) -> str:
    """Parts of a report, separated by empty lines; empty parts are left out."""
    return "\n\n".join(part.rstrip("\n") for part in parts if part)


def number(value: float | None, form: str, factor: float = 1.0) -> str:
    """A figure in a table; - if it is not known."""
    return "-" if value is None else form.format(value * factor)


def one_line(text: str) -> str:
    """Text on one line, without control characters."""
    return "".join(character if character.isprintable() else "␤" if character == "\n" else "·" for character in text)


def json_report(tool: str, figures: Any) -> str:
    """A whole report as one JSON object.

    Args:
        tool: name of the tool; the object's first key is `specchat_<tool>`.
        figures: a dataclass, or a dictionary of its fields.
    """
    fields = figures if isinstance(figures, dict) else asdict(figures)
    return json.dumps({f"specchat_{tool}": VERSION, **fields}, indent=1, default=vars)


def csv_report(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A report as CSV with one header line."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return out.getvalue()
