"""Explains a round part by part, in words, while the engine or a replay is paused."""

from __future__ import annotations

from typing import Any, ClassVar

from rich.style import Style
from rich.text import Text
from textual.widget import Widget

from specchat.app.sanitize import escape_controls
from specchat.app.sources.stepper import Part
from specchat.app.ui.widgets.inspector import chance_of, number, shown
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
        """Say what these parts of rounds are; `last` is the round that was completed before."""
        if (steps, last) != (self._steps, self._last):
            self._steps, self._last = steps, last
            self.refresh()

    def render(self) -> Text:
        """What the round of the first lane has come to."""
        record = self._steps[0][0] if self._steps else self._last
        head = "paused" if record is None else f"round {record.number + 1}"
        more = f" · {len(self._steps)} lanes" if len(self._steps) > 1 else ""
        line = Text.assemble(("‖ ", self._style("sign")), (f"{head}{more}  ", self._style("strong")))
        if self._steps:
            line.append_text(_sentence(*self._steps[0]))
        elif self._last is not None:
            line.append_text(_ending(self._last))
        else:
            line.append("no round is run until you step (f7) or go on (f10)", self._style("quiet"))
        return line

    def _style(self, part: str) -> Style:
        return self.get_component_rich_style(f"step-bar--{part}", partial=True)


def _sentence(record: Round, part: Part) -> Text:
    drafted = len(record.drafted)
    if part is Part.DRAFTED and record.observed:
        return Text(f"{drafted} token{'s' if drafted > 1 else ''} drafted; one pass of the target judges them all")
    if part is Part.DRAFTED:
        tokens = f"{drafted} token{'s' if drafted > 1 else ''}"
        if record.offered:
            tokens = f"{record.offered} tokens for {record.steps} position{'s' if record.steps > 1 else ''}, among them"
        names = " ".join(f"“{shown(piece)}”" for piece in record.pieces)
        proposed = f"{tokens} {names}" if record.offered else f"{tokens}: {names}"
        return Text(f"{escape_controls(record.drafter)} proposes {proposed}; one pass of the target judges them all")
    if record.accepted == record.tested:
        return Text(f"all {record.accepted} kept; the same pass gives one token more")
    if record.observed:
        return Text(f"{record.accepted or 'none'} of {drafted} kept; the server says no more of the others")
    p, q, u = record.p[record.accepted], record.q[record.accepted], record.u[record.accepted]
    why = f"u {number(u)} ≥ {number(chance_of(p, q))}"
    others = len(record.refused[record.accepted]) if record.refused else 0
    beside = f" and {others} offered beside it" if others else ""
    behind = drafted - record.tested
    discarded = f", the {behind} behind it discarded" if behind else ""
    refused = f"“{shown(record.pieces[record.accepted])}” refused ({why}){beside}"
    return Text(f"{record.accepted or 'none'} kept; {refused}{discarded}")


def _ending(record: Round) -> Text:
    if record.last_fate is None:
        return Text("the reply ended inside the accepted tokens")
    return Text(f"the target adds “{shown(record.last_piece)}”, the {_NAMES[record.last_fate.value]}")


_NAMES = {"correction": "correction", "bonus": "bonus", "plain": "only token of a round without a draft"}
