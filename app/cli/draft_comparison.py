"""Speedup of several drafts by batch, as a table, a plot and a picture."""

from collections.abc import Sequence
from io import StringIO
from itertools import cycle
from pathlib import Path

import plotext
from rich.console import Console
from rich.text import Text

from specchat.app.errors import explained
from specchat.app.sanitize import escape_controls
from specchat.app.ui.rendering.pictures import without_buttons
from specchat.engine.tools.bench import BenchReport

_SIZE = 90, 22
"""Columns and lines of the plot."""
_LINES = 17
"""Lines of the plot area without title and axis."""
_PLAIN = 1.0
"""Speedup of decoding without drafts."""
_COLOURS = (230, 159, 0), (86, 180, 233), (0, 158, 115), (204, 121, 167), (213, 94, 0), (0, 114, 178)
"""Colour-blind safe (Okabe and Ito 2008)."""
_MARKERS = "●■▲◆○□△"
"""Distinguish curves where there are no colours."""


class DraftComparison:
    """Curves of speedup over plain decoding, one for each draft, set of prompts, γ and temperature.

    Args:
        drafts: names or paths.
        reports: the report of each draft's run, with crossovers.
    """

    def __init__(self, drafts: Sequence[str], reports: Sequence[BenchReport]) -> None:
        self._title = escape_controls("{target}, {device_name}".format_map(reports[0].setting))
        self._curves: list[tuple[str, dict[int, float]]] = []
        """Name, and batch to speedup in the same run, up to the first batch at which the draft does not pay."""
        for draft, report in zip(drafts, reports, strict=True):
            several = len({(each.prompts, each.gamma, each.temperature) for each in report.crossovers}) > 1
            for each in report.crossovers:
                where = f", {each.prompts}, γ {each.gamma}, T {each.temperature:g}" if several else ""
                name = escape_controls(Path(draft).name or draft) + where
                self._curves.append((name, {cell.batch: cell.measured_speedup for cell in each.cells}))
        self._batches = sorted({batch for _, speedups in self._curves for batch in speedups})

    def text(self) -> str:
        """A table of speedups, the best draft of each batch, and the plot without colours."""
        width = max(len("batch"), *(len(name) for name, _ in self._curves))
        heads = "".join(f"{batch:>8}" for batch in self._batches)
        lines = ["speedup over plain decoding, by batch", f"{'batch':{width}}{heads}"]
        for name, speedups in self._curves:
            shown = [f"{speedups[batch]:.2f}×" if batch in speedups else "–" for batch in self._batches]
            lines.append(f"{name:{width}}" + "".join(f"{value:>8}" for value in shown))
        lines.append("")
        for batch in self._batches:
            best, speedups = max(self._curves, key=lambda curve: curve[1].get(batch, 0.0))
            verdict = f"{best}, {speedups[batch]:.2f}×" if speedups[batch] > _PLAIN else "no draft pays"
            lines.append(f"at a batch of {batch}: {verdict}")
        return "\n".join([*lines, "", Text.from_ansi(self._plot()).plain.rstrip()])

    def save_picture(self, file: Path) -> None:
        """Write the plot as SVG.

        Raises:
            AppError: the file exists or cannot be written.
        """
        console = Console(width=_SIZE[0], file=StringIO(), force_terminal=True, color_system="truecolor", record=True)
        console.print(Text.from_ansi(self._plot()))
        with explained(f"the picture {file} cannot be written"), file.open("x", encoding="utf-8") as picture:
            picture.write(without_buttons(console.export_svg(title=self._title)))

    def _plot(self) -> str:
        """Speedups by batch, with a line at the speedup of plain decoding; as text with ANSI colours."""
        plotext.clear_figure()
        plotext.limit_size(False, False)
        plotext.plotsize(*_SIZE)
        plotext.theme("clear")
        places = {batch: place for place, batch in enumerate(self._batches)}
        for (name, speedups), colour, marker in zip(self._curves, cycle(_COLOURS), cycle(_MARKERS), strict=False):
            x, y = [places[batch] for batch in speedups], list(speedups.values())
            plotext.plot(x, y, marker="braille", color=colour)
            plotext.scatter(x, y, label=name, marker=marker, color=colour)
        values = [speedup for _, speedups in self._curves for speedup in speedups.values()]
        low, high = min(*values, _PLAIN), max(*values, _PLAIN)
        legend = (len(self._curves) + 1) / max(_LINES - len(self._curves) - 1, 1)  # its share, above the curves
        plotext.ylim(low, high + max(high - low, 0.1) * legend)
        plotext.hline(_PLAIN, "gray")
        plotext.xticks(list(places.values()), [str(batch) for batch in self._batches])
        plotext.xlabel("requests at once")
        plotext.title("speedup over plain decoding (1 is none)")
        return str(plotext.build())
