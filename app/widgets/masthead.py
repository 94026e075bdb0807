"""The line at the top: the program, the models, the legend, the machine."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.widgets import Static

from app.widgets.figures import machine
from app.widgets.legend import Legend
from engine import Ready


class Masthead(Horizontal):
    """One line on a wide screen; on a narrow one the legend has the second."""

    def compose(self) -> ComposeResult:
        """The parts, left to right."""
        yield Static(" specchat ", id="name")
        yield Static("", id="models")
        yield Static("", id="machine")
        yield Legend(id="legend")

    def name_it(self, name: str) -> None:
        """What this is: the program, or a replay."""
        self.query_one("#name", Static).update(f" {name} ")

    def show_models(self, target: str, drafter: str, gamma: int) -> None:
        """Target, and who drafts for it how much."""
        draft = Content.assemble(f"{drafter}", (f"  γ {gamma}", "dim")) if drafter and gamma else Content("no drafts")
        self.query_one("#models", Static).update(Content.assemble((target, "bold"), (" ◂ ", "dim"), draft))

    def show_machine(self, ready: Ready) -> None:
        """Where the models run."""
        self.query_one("#machine", Static).update(machine(ready))
