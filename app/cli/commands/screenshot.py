"""`specchat screenshot`: the end of a recorded trace as the interface shows it, without a terminal and a model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from specchat.app.errors import UsageError
from specchat.app.paths import settings_file
from specchat.app.sanitize import escape_controls
from specchat.app.storage.files import write_first_free

SIZE = "140x40"
LEAST, MOST = (48, 12), (500, 300)
_SIZE = re.compile(r"(\d{1,4})x(\d{1,4})")

Theme = Annotated[str | None, typer.Option("--theme", metavar="NAME", help="Colours; those of the settings if not.")]


def screenshot(
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="A trace that ask --trace recorded.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE.svg", help="The picture; it must not exist yet.")],
    size: Annotated[str, typer.Option("--size", metavar="COLUMNSxLINES", help="Of the terminal.")] = SIZE,
    theme: Theme = None,
) -> None:
    """Draw the end of a recorded trace as an SVG picture, without a terminal and without a model."""
    from specchat.engine import EngineError, read_trace

    columns, lines = _size(size)
    records = list(read_trace(trace))
    if not records:
        raise EngineError(f"{trace} holds no records: there is nothing to show")
    refuse_existing(out)
    from specchat.app.ui.headless import trace_svg

    write_new(out, trace_svg(records, trace.name, (columns, lines), known_theme(theme)))
    print(f"picture saved as {escape_controls(str(out))}")


def known_theme(wanted: str | None) -> str:
    """The theme asked for, or the one of the settings.

    Raises:
        UsageError: there is no such theme.
    """
    from textual.theme import BUILTIN_THEMES

    from specchat.app.settings.settings_file import load_settings
    from specchat.app.ui import themes

    name = wanted or load_settings(settings_file())[0].theme
    names = [themes.DARK.name, themes.LIGHT.name, *sorted(BUILTIN_THEMES)]
    if wanted and wanted not in names:
        raise UsageError(f"theme {wanted!r} is not known: choose one of {', '.join(names)}")
    return name


def refuse_existing(path: Path) -> None:
    """Nothing is overwritten.

    Raises:
        UsageError: the file is there already.
    """
    if path.exists():
        raise UsageError(f"{path} exists already: name another file")


def write_new(path: Path, text: str) -> None:
    """Write a file that is not there yet.

    Raises:
        UsageError: it is there, or cannot be written.
    """
    try:
        write_first_free(path.parent, [path.name], text)
    except FileExistsError:
        refuse_existing(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from None


def _size(text: str) -> tuple[int, int]:
    found = _SIZE.fullmatch(text)
    columns, lines = (int(found[1]), int(found[2])) if found else (0, 0)
    if not (LEAST[0] <= columns <= MOST[0] and LEAST[1] <= lines <= MOST[1]):
        least, most = ("x".join(map(str, limit)) for limit in (LEAST, MOST))
        raise UsageError(
            f"--size {text} is not understood: give columns x lines from {least} to {most}, such as {SIZE}"
        )
    return columns, lines
