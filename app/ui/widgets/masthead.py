"""The line at the top: the program, the models, the legend, the machine."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.widgets import Static

from specchat.app.sanitize import escape_controls
from specchat.app.ui.widgets.figures import machine
from specchat.app.ui.widgets.legend import Legend
from specchat.engine import Ready, gamma_text


class Masthead(Horizontal):
    """One line on a wide screen; on a narrow one the legend has the second."""

    program = "specchat"
    """Name at the left; set before it is composed, or with `name_it`."""

    def compose(self) -> ComposeResult:
        """The parts, left to right."""
        yield Static(f" {self.program} ", id="name")
        yield Static("", id="models")
        yield Static("", id="machine")
        yield Legend(id="legend")

    def name_it(self, name: str) -> None:
        """Show this name at the left."""
        self.query_one("#name", Static).update(f" {name} ")

    def show_models(self, target: str, drafter: str, gamma: int | None, *, lossless: bool = True) -> None:
        """Show target, drafter and γ; γ is None where it adapts."""
        drafts = drafter not in ("", "none") and gamma != 0
        length = (f"  γ {gamma_text(gamma)}", "dim")
        draft = Content.assemble(escape_controls(drafter), length) if drafts else Content("no drafts")
        warning = Content("") if lossless else Content.assemble("  ", (" lossy ", "reverse"))
        self.query_one("#models", Static).update(
            Content.assemble((escape_controls(target), "bold"), (" ◂ ", "dim"), draft, warning)
        )

    def show_targets(self, targets: str, note: str) -> None:
        """The targets alone, and a word about them."""
        word = Content.assemble("  ", (f" {note} ", "reverse")) if note else Content("")
        self.query_one("#models", Static).update(Content.assemble((targets, "bold"), word))

    def show_machine(self, ready: Ready) -> None:
        """Where the models run."""
        self.query_one("#machine", Static).update(Content(escape_controls(machine(ready))))
