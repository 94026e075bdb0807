"""Progress on stderr: a status line that is removed afterwards, and the progress bar of `specchat models pull`."""

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from specchat.app.cli.terminal import unescaped
from specchat.app.sanitize import escape_controls
from specchat.engine import Loading, Progress

_BACK_AND_CLEAR = "\r\x1b[K"
_STEP = 0.25
"""Outside a terminal, progress is printed each time it has grown by this fraction."""


def warn(text: str | None) -> None:
    """Print a sentence on stderr; nothing if it is empty."""
    if text:
        print(f"specchat: {text}", file=sys.stderr)


class StatusLine:
    """Shows the newest text on one line of the terminal, on stderr.

    It draws when it gets a text. (Rich's status draws twelve times a second from its own thread, which takes time from
    what is measured.)

    Args:
        as_lines: whether texts are printed line by line if stderr is no terminal. The first line is printed with the
            second: a command that fails before its work begins prints one sentence only.
    """

    def __init__(self, *, as_lines: bool = False) -> None:
        self._as_lines = as_lines and not sys.stderr.isatty()
        self._first: str | None = None
        self._shown = ""

    def say(self, text: str, suffix: str = "") -> None:
        """Replace the line; if it is too long, the text is cut and the suffix stays."""
        if self._as_lines:
            line = text + suffix
            if self._first is None:
                self._first = line
            else:
                print(*filter(None, (self._first, line)), sep="\n", file=sys.stderr, flush=True)
                self._first = ""
        if not sys.stderr.isatty():
            return
        columns = shutil.get_terminal_size().columns
        line = escape_controls(text)[: columns - len(suffix) - 1] + suffix
        if line != self._shown:
            self._shown = line  # set first, so that an interrupt while writing still clears the line
            print(_BACK_AND_CLEAR + line, end="", file=unescaped(sys.stderr), flush=True)

    def show(self, loading: Loading) -> None:
        """Show what is loading and how much of it is loaded."""
        self.say(loading.text, "" if loading.fraction is None else f" {loading.fraction:.0%}")

    def __enter__(self) -> Self:
        return self

    def clear(self) -> None:
        """Remove the line, so that something can be printed."""
        if self._shown:
            print(_BACK_AND_CLEAR, end="", file=unescaped(sys.stderr), flush=True)
            self._shown = ""

    def __exit__(self, *_: object) -> None:
        self.clear()


@contextmanager
def pull_progress(*, as_json: bool = False) -> Iterator[Progress]:
    """Progress callback for `engine.models.known.pull`: JSON on stdout; on stderr a bar on a terminal, or lines."""
    if as_json or not sys.stderr.isatty():
        yield _json_line if as_json else _plain_lines()
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    left = (TextColumn("· left"), TimeRemainingColumn())
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), *left)
    with Bars(*columns, console=Console(file=unescaped(sys.stderr))) as bars:
        tasks = {}

        def show(stage: str, text: str, fraction: float | None) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task("", total=None)
            total = None if fraction is None else 1.0
            bars.update(tasks[stage], description=escape(escape_controls(text)), total=total, completed=fraction or 0.0)

        yield show


def _json_line(stage: str, text: str, fraction: float | None) -> None:
    """Print one JSON object on a line of stdout."""
    print(json.dumps({"stage": stage, "text": text, "fraction": fraction}), flush=True)


def _plain_lines() -> Progress:
    """Progress callback that prints one line per stage and quarter of it; repeated texts are printed once."""
    last: tuple[str, str | int] | None = None

    def show(stage: str, text: str, fraction: float | None) -> None:
        nonlocal last
        step = text if fraction is None else int(fraction / _STEP)
        if last != (stage, step):
            share = "" if isinstance(step, str) else f" {step * _STEP:.0%}"
            print(f"{text}{share}", file=sys.stderr, flush=True)
        last = (stage, step)

    return show
