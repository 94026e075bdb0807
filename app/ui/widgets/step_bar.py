"""Describes a round part by part while the engine or a replay is paused."""

from __future__ import annotations

from typing import Any, ClassVar

from rich.style import Style
from rich.text import Text
from textual.widget import Widget

from specchat.app.sanitize import escape_controls
from specchat.app.sources.stepper import Part
from specchat.app.ui.rendering.verdict import chance_of, number, shown
from specchat.engine import Round

Steps = list[tuple[Round, Part]]


class StepBar(Widget):
    """One sentence on the part of the round that is shown."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"step-bar--sign", "step-bar--quiet", "step-bar--strong"}
    ALLOW_SELECT = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._steps: Steps = []
        self._last: Round | None = None

    def show(self, steps: Steps, last: Round | None) -> None:
        """Show these parts of rounds; `last` is the previous round."""
        if (steps, last) != (self._steps, self._last):
            self._steps, self._last = steps, last
            self.refresh()

    def render(self) -> Text:
        """The state of the first lane's round."""
        record = self._steps[0][0] if self._steps else self._last
        head = "paused" if record is None else f"round {record.number + 1}"
        more = f" · {len(self._steps)} lanes" if len(self._steps) > 1 else ""
        line = Text.assemble(("‖ ", self._style("sign")), (f"{head}{more}  ", self._style("strong")))
        if self._steps:
            line.append_text(_sentence(*self._steps[0]))
        elif self._last is not None:
            line.append_text(_ending(self._last))
        else:
            line.append("no round runs until you step (f7) or continue (f10)", self._style("quiet"))
        return line

    def _style(self, part: str) -> Style:
        return self.get_component_rich_style(f"step-bar--{part}", partial=True)


def _sentence(record: Round, part: Part) -> Text:
    drafted = len(record.drafted)
    if part is Part.DRAFTED and record.observed:
        return Text(f"{drafted} token{'s' if drafted > 1 else ''} drafted; one pass of the target verifies them all")
    if part is Part.DRAFTED:
        tokens = f"{drafted} token{'s' if drafted > 1 else ''}"
        if record.offered:
            tokens = f"{record.offered} tokens for {record.steps} position{'s' if record.steps > 1 else ''}, among them"
        names = " ".join(f"“{shown(piece)}”" for piece in record.pieces)
        proposed = f"{tokens} {names}" if record.offered else f"{tokens}: {names}"
        return Text(f"{escape_controls(record.drafter)} proposes {proposed}; one pass of the target verifies them all")
    if record.accepted == record.tested:
        return Text(f"all {record.accepted} accepted; the same pass gives one more token")
    if record.observed:
        return Text(f"{record.accepted or 'none'} of {drafted} accepted; the server reports no more of the others")
    p, q, u = record.p[record.accepted], record.q[record.accepted], record.u[record.accepted]
    why = f"u {number(u)} ≥ {number(chance_of(p, q))}"
    others = len(record.refused[record.accepted]) if record.refused else 0
    more = f" and {others} more candidates" if others else ""
    untested = drafted - record.tested
    discarded = f", the {untested} after it discarded" if untested else ""
    rejected = f"“{shown(record.pieces[record.accepted])}” rejected ({why}){more}"
    return Text(f"{record.accepted or 'none'} accepted; {rejected}{discarded}")


def _ending(record: Round) -> Text:
    if record.last_fate is None:
        return Text("the reply ended inside the accepted tokens")
    return Text(f"the target adds “{shown(record.last_piece)}”, the {_NAMES[record.last_fate.value]}")


_NAMES = {"correction": "correction", "bonus": "bonus", "plain": "only token of a round without a draft"}
