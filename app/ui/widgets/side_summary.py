"""Summary of both lanes' last replies: every figure, and whether the texts are the same."""

from __future__ import annotations

from rich.style import Style
from rich.table import Table
from rich.text import Text
from textual.widgets import Static

from specchat.app.sanitize import escape_controls
from specchat.app.side_by_side.attached_lanes import OWN_STREAM
from specchat.app.side_by_side.duet import Duet
from specchat.app.ui.rendering.side_figures import (
    Pair,
    exactness,
    gains,
    server_gains,
    server_texts,
    spread,
    texts,
    timing,
)
from specchat.engine import CLOCKS

HINT = "with --exact no token depends on the rest of the batch, so rounding cannot change the texts"


class SideSummary(Static):
    """Two groups of figures, side by side on a wide screen."""

    COMPONENT_CLASSES = {"side-summary--label", "side-summary--same", "side-summary--differ"}  # noqa: RUF012
    TWO_GROUPS = 84
    """Minimum width in cells for two groups side by side."""

    def show(self, duet: Duet) -> None:
        """The figures of the last replies."""
        comparison = duet.comparison
        observed = duet.server is not None
        first = timing(comparison, duet.labels, observed=observed)
        second = [*(server_gains if observed else gains)(comparison), *spread(duet.runs)]
        table = Table.grid(padding=(0, 3))
        if self.app.size.width - 6 >= self.TWO_GROUPS:
            table.add_row(self._group(first), self._group(second))
        else:
            table.add_row(self._group([*first, *second]))
        greedy, same_prompt = duet.greedy, duet.same_prompt
        if observed:
            said = duet.reply(0), duet.reply(1)
            sentence, same = server_texts(said, greedy=greedy, same_prompt=same_prompt)
        else:
            sentence, same = texts(comparison, duet.gap, greedy=greedy, same_prompt=same_prompt)
        style = "label" if same is None else "same" if same else "differ"
        whole = Table.grid()
        whole.add_row(table)
        whole.add_row(Text.assemble(("texts".ljust(11), self._style("label")), (sentence, self._style(style))))
        note = exactness(duet.readies()) or ("" if same is not False else HINT)
        if note:
            whole.add_row(Text(note, self._style("label")))
        self.update(whole)

    def explain(self, duet: Duet) -> None:
        """Before the first prompt: how the clocks count."""
        clocks = CLOCKS if duet.server is None else OWN_STREAM.format(escape_controls(duet.server))
        note = exactness(duet.readies())
        self.update(Text(f"{clocks}\n{note}" if note else clocks, self._style("label")))

    def _group(self, rows: list[Pair]) -> Table:
        table = Table.grid(padding=(0, 2))
        table.add_column(style=self._style("label"), width=9, no_wrap=True)
        table.add_column()
        for row in rows:
            table.add_row(*row)
        return table

    def _style(self, part: str) -> Style:
        return self.get_component_rich_style(f"side-summary--{part}", partial=True)
