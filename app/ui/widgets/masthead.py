"""The header with the program, the models, the legend and the device; and the welcome page of an empty chat."""

from __future__ import annotations

from itertools import starmap
from typing import Any, ClassVar

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.widgets import Static

from specchat.app.sanitize import escape_controls
from specchat.app.settings.controls import gamma_limit
from specchat.app.sources.observed import OBSERVED
from specchat.app.ui.first_prompts import FIRST_PROMPTS
from specchat.app.ui.rendering.figures import FATES, machine, meter
from specchat.app.ui.rendering.styles import TOKEN_CLASSES
from specchat.app.ui.widgets.styled import StyledWidget
from specchat.engine import Fate, Loading, Ready, Sampling, gamma_text

WIDE = 140
"""Assumed width in cells before the first layout."""


class Masthead(Horizontal):
    """One line on a wide screen; on a narrow one the legend has the second."""

    program = "specchat"
    """Name at the left; set before it is composed."""
    _models: tuple[Content, Content] = (Content(""), Content(""))
    """The target, which may be cut, and the text after it, which is not."""
    _ready: Ready | None = None

    def compose(self) -> ComposeResult:
        """The parts, left to right."""
        yield Static(f" {self.program} ", id="name")
        yield Static("", id="models")
        yield Static("", id="machine")
        yield Legend(id="legend")

    def on_resize(self) -> None:
        """More fits, or less."""
        self._show()

    def show_models(self, target: str, drafter: str, gamma: int | None, sampling: Sampling) -> None:
        """Show target, drafter, the setting of γ (None where it adapts), and the temperature if replies are sampled."""
        drafts = drafter not in ("", "none") and gamma != 0
        length = ("" if drafter == OBSERVED else f"  {gamma_limit(gamma_text(gamma))}", "$quiet")
        draft = Content.assemble(escape_controls(drafter), length) if drafts else Content("no drafts")
        drawn = Content("" if sampling.greedy else f"  T {sampling.temperature:g}").stylize("$quiet")
        warning = Content("") if sampling.lossless else Content.assemble("  ", (" lossy ", "reverse"))
        self._models = _bold(escape_controls(target)), Content.assemble((" ◂ ", "$quiet"), draft, drawn, warning)
        self._show()

    def show_targets(self, targets: str, note: str) -> None:
        """The targets alone, and a word about them."""
        self._models = _bold(targets), Content.assemble("  ", (f" {note} ", "reverse")) if note else Content("")
        self._show()

    def show_machine(self, ready: Ready | None) -> None:
        """Show the device of the models; None if no model is loaded."""
        self._ready, observed = ready, bool(ready and ready.observed)
        legend = self.query_one(Legend)
        if legend.observed != observed:
            legend.observed = observed
            legend.refresh(layout=True)
        self._show()

    def _show(self) -> None:
        """Show everything that fits: the device is shortened first, then the target's name."""
        target, rest = self._models
        room = (self.size.width or WIDE) - 2 - cell_len(self.program) - 2 - 4  # spaces around each of them
        room -= target.cell_length + rest.cell_length
        said = machine(self._ready) if self._ready is not None else []
        while said and cell_len(" · ".join(said)) + 3 > room:
            said = said[:-1]
        if room < 0:
            target = target.truncate(max(target.cell_length + room, 8), ellipsis=True)
        self.query_one("#models", Static).update(Content.assemble(target, rest))
        shown = self.query_one("#machine", Static)
        shown.display = bool(said)
        shown.update(Content(escape_controls(" · ".join(said))))


def _bold(text: str) -> Content:
    return Content.styled(text, "bold")


SIGN = "■ "


class Legend(StyledWidget):
    """One line; if it does not fit, without signs, then cut."""

    COMPONENT_CLASSES: ClassVar[set[str]] = TOKEN_CLASSES

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.observed = False
        """Whether fates may be unknown."""
        self.tooltip = "what became of each token · f1 explains"

    def get_content_width(self, container: Any, viewport: Any) -> int:  # noqa: ARG002 the base class names them
        """The width with signs."""
        return len(self._line(SIGN, "  ").plain)

    def render(self) -> Text:
        """The longest form that fits."""
        for sign, gap in ((SIGN, "  "), (SIGN, " "), ("", " ")):
            line = self._line(sign, gap)
            if line.cell_len <= self.size.width:
                break
        return line

    def _line(self, sign: str, gap: str) -> Text:
        line = Text(no_wrap=True, overflow="crop")
        for fate in (*FATES, *([Fate.UNKNOWN] if self.observed else [])):
            style = self.style_of(f"token--{fate.value}")
            if fate is not Fate.ACCEPTED:
                line.append(gap)
            line.append(sign, Style(color=style.color))
            line.append(fate.value, style)
        return line


BAR = 36
SHOWS = 14
"""Cells before an explanation or a prompt."""
NAME = (("spec", Fate.ACCEPTED), ("ulate", Fate.REJECTED), ("chat", Fate.CORRECTION))
MOTTO = "the drafter guesses, the target checks: the same answer, sooner"


class Welcome(StyledWidget):
    """The name is drawn as a round: drafted and accepted, rejected, corrected."""

    COMPONENT_CLASSES: ClassVar[set[str]] = TOKEN_CLASSES | {
        "welcome--quiet", "welcome--full", "welcome--empty", "welcome--error", "welcome--strong",
    }  # fmt: skip
    _state: Loading | str = Loading("import", "starting", None, 0.0)
    _failed = False
    offering = True
    """Whether prompts are offered: not in a replay."""

    def show(self, state: Loading | str, *, failed: bool = False) -> None:
        """Show progress, or a sentence."""
        self._state, self._failed = state, failed
        self.refresh(layout=True)

    def render(self) -> Text:
        """All lines; the style sheet centres the block."""
        name = [(part, self.style_of(f"token--{fate.value}") + Style(bold=True)) for part, fate in NAME]
        lines = [Text.assemble(*name), Text(MOTTO, self.style_of("welcome--quiet")), Text()]
        ending, offers, explained = self._progress(), self._offers(), [*starmap(self._explained, FATES.items()), Text()]
        room, width = self.size.height - len(lines) - len(ending), max(line.cell_len for line in explained)
        if room < len(offers):
            offers = []
        if room >= len(explained) + len(offers) and width <= self.size.width:
            lines += explained
        for line in offers:
            line.truncate(self.size.width, overflow="ellipsis")
        return Text("\n").join([*lines, *ending, *offers])

    def _explained(self, fate: Fate, meaning: str) -> Text:
        """The meaning of a colour."""
        style = self.style_of(f"token--{fate.value}")
        line = Text.assemble(("■ ", Style(color=style.color)), (fate.value, style))
        line.pad_right(SHOWS - line.cell_len)
        return line.append(meaning, self.style_of("welcome--quiet"))

    def _offers(self) -> list[Text]:
        """Example prompts to click on, and the keys for them."""
        if not self.offering or self._failed:
            return []
        quiet, strong = self.style_of("welcome--quiet"), self.style_of("welcome--full")
        lines = [Text()]
        for place, prompt in enumerate(FIRST_PROMPTS):
            click = Style(meta={"@click": f"screen.offer({place})"})
            lines.append(Text.assemble((prompt.shows.ljust(SHOWS), strong + click), (prompt.text, quiet + click)))
        tour = Style(meta={"@click": "app.run('tour')"})
        return [
            *lines,
            Text.assemble(("tab tries one · ", quiet), ("/tour", strong + tour), (" explains it all", quiet)),
        ]

    def _progress(self) -> list[Text]:
        if isinstance(self._state, str):
            return [Text(self._state, self.style_of("welcome--error" if self._failed else "welcome--strong"))]
        share = self._state.fraction
        full, empty = meter(share, BAR)
        text = escape_controls(self._state.text) + ("" if share is None else f"  {share * 100:.0f} %")
        bar = Text.assemble((full, self.style_of("welcome--full")), (empty, self.style_of("welcome--empty")))
        return [bar, Text(text, self.style_of("welcome--strong"))]
