"""Progress of `specchat models pull`: a bar on a terminal, a few plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from specchat.app.sanitize import escape_controls
from specchat.engine import Progress

_STEP = 0.25
"""A stream that is no terminal gets a line at each of these shares."""


@contextmanager
def pull_progress(stream: TextIO) -> Iterator[Progress]:
    """What to give to `engine.models.resolve_model` as progress while the body runs."""
    if stream.isatty():
        with _bar(stream) as progress:
            yield progress
    else:
        yield PlainLines(stream)


class PlainLines:
    """Writes one line per stage and quarter of it; the same sentence again writes nothing."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._last: tuple[str, str | int] | None = None

    def __call__(self, stage: str, text: str, fraction: float | None) -> None:
        """A `Progress`."""
        step = text if fraction is None else int(fraction / _STEP)
        if self._last != (stage, step):
            share = "" if isinstance(step, str) else f" {step * _STEP:.0%}"
            print(f"{escape_controls(text)}{share}", file=self._stream, flush=True)
        self._last = (stage, step)


@contextmanager
def _bar(stream: TextIO) -> Iterator[Progress]:
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    left = (TextColumn("· left"), TimeRemainingColumn())
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), *left)
    with Bars(*columns, console=Console(file=stream)) as bars:
        tasks = {}

        def show(stage: str, text: str, fraction: float | None) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task("", total=None)
            total = None if fraction is None else 1.0
            bars.update(tasks[stage], description=escape(escape_controls(text)), total=total, completed=fraction or 0.0)

        yield show
