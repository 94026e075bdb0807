"""Several drafts, batch by batch: which pays where on this machine, as a table, a plot and a picture."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import plotext
from rich.console import Console
from rich.text import Text

from specchat.app.errors import AppError
from specchat.app.sanitize import escape_controls
from specchat.engine.tools.bench import BenchReport

_SIZE = 90, 22
"""Columns and lines of the plot."""
_LINES = 17
"""Lines of it that are curves."""
_NONE = 1.0
"""Speedup of no drafts at all."""
_COLOURS = (230, 159, 0), (86, 180, 233), (0, 158, 115), (204, 121, 167), (213, 94, 0), (0, 114, 178)
"""Of curves: they differ for most eyes (Okabe and Ito 2008)."""
_SIGNS = "●■▲◆○□△"
"""Of measured points: text may be without colours."""


@dataclass(frozen=True, slots=True)
class Racer:
    """One draft on one set of prompts."""

    name: str
    speedups: dict[int, float]
    """Batch to speedup over plain decoding in the same run, up to the first batch at which the draft does not pay."""


def racers(drafts: Sequence[str], reports: Sequence[BenchReport]) -> list[Racer]:
    """The curves of drafts, each with the report of its own run."""
    found = []
    for draft, report in zip(drafts, reports, strict=True):
        several = len({(each.prompts, each.gamma, each.temperature) for each in report.crossovers}) > 1
        for each in report.crossovers:
            where = f", {each.prompts}, γ {each.gamma}, T {each.temperature:g}" if several else ""
            name = escape_controls(Path(draft).name or draft) + where
            found.append(Racer(name, {cell.batch: cell.measured_speedup for cell in each.cells}))
    return found


def race_text(found: Sequence[Racer]) -> str:
    """A table of speedups, the best draft of each batch, and a plot of all."""
    batches = sorted({batch for each in found for batch in each.speedups})
    width = max(len("batch"), *(len(each.name) for each in found))
    lines = [
        "speedup over plain decoding, by batch",
        f"{'batch':{width}}" + "".join(f"{batch:>8}" for batch in batches),
    ]
    for each in found:
        shown = [f"{each.speedups[batch]:.2f}×" if batch in each.speedups else "–" for batch in batches]
        lines.append(f"{each.name:{width}}" + "".join(f"{value:>8}" for value in shown))
    lines.append("")
    for batch in batches:
        best = max(found, key=lambda each: each.speedups.get(batch, 0.0))
        gain = best.speedups[batch]
        verdict = f"{best.name}, {gain:.2f}×" if gain > _NONE else "no draft pays"
        lines.append(f"at a batch of {batch}: {verdict}")
    return "\n".join([*lines, "", Text.from_ansi(_plot(found)).plain.rstrip()])


def save_race(found: Sequence[Racer], title: str, file: Path) -> None:
    """Write the plot as SVG.

    Raises:
        AppError: the file is there already, is named as something else, or cannot be written.
    """
    console = Console(width=_SIZE[0], file=io.StringIO(), force_terminal=True, color_system="truecolor", record=True)
    console.print(Text.from_ansi(_plot(found)))
    try:
        with file.open("x", encoding="utf-8") as picture:
            picture.write(console.export_svg(title=title))
    except OSError as error:
        raise AppError(f"the picture {file} cannot be written: {error.strerror or error}") from None


def check_picture(file: Path) -> None:
    """Refuse what `save_race` would refuse, before anything is measured.

    Raises:
        AppError: it would.
    """
    if file.suffix != ".svg":
        raise AppError(f"the picture {file} would be SVG: give it a name that ends in .svg")
    if file.exists():
        raise AppError(f"{file} is there already: name another picture")
    if not file.absolute().parent.is_dir():
        raise AppError(f"there is no folder {file.absolute().parent} for the picture {file.name}")


def _plot(found: Sequence[Racer]) -> str:
    """Speedups by batch, with a line where drafts stop paying; as text with colours."""
    plotext.clear_figure()
    plotext.limit_size(False, False)
    plotext.plotsize(*_SIZE)
    plotext.theme("clear")
    batches = sorted({batch for each in found for batch in each.speedups})
    places = {batch: place for place, batch in enumerate(batches)}
    for each, colour, sign in zip(found, cycle(_COLOURS), cycle(_SIGNS), strict=False):
        x, y = [places[batch] for batch in each.speedups], list(each.speedups.values())
        plotext.plot(x, y, marker="braille", color=colour)
        plotext.scatter(x, y, label=each.name, marker=sign, color=colour)
    values = [speedup for each in found for speedup in each.speedups.values()]
    low, high = min(*values, _NONE), max(*values, _NONE)
    # The legend is inside, above the curves.
    plotext.ylim(low, high + max(high - low, 0.1) * (len(found) + 1) / max(_LINES - len(found) - 1, 1))
    plotext.hline(_NONE, "gray")
    plotext.xticks(list(places.values()), [str(batch) for batch in batches])
    plotext.xlabel("requests at once")
    plotext.title("speedup over plain decoding (1 is none)")
    return str(plotext.build())
