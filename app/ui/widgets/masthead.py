"""The header with the program, the models, the legend and the device; and the welcome page of an empty chat."""

from itertools import starmap
from typing import Any

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.style import Style
from textual.widget import Widget
from textual.widgets import Static

from specchat.app.sanitize import escape_controls
from specchat.app.settings.controls import gamma_limit
from specchat.app.sources.observed import OBSERVED
from specchat.app.ui.first_prompts import FIRST_PROMPTS
from specchat.app.ui.rendering.figures import FATES, machine, meter
from specchat.app.ui.rendering.styles import fate_style
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

    def show_models(self, target: str, drafter: str, gamma: int | None, sampling: Sampling) -> None:
        """Show target, drafter, the setting of γ (None where it adapts), and the temperature if replies are sampled."""
        drafts = drafter not in ("", "none") and gamma != 0
        length = ("" if drafter == OBSERVED else f"  {gamma_limit(gamma_text(gamma))}", "$quiet")
        draft = Content.assemble(escape_controls(drafter), length) if drafts else Content("no drafts")
        warning = Content("") if sampling.lossless else Content.assemble("  ", (" lossy ", "reverse"))
        self._models = (
            _bold(escape_controls(target)),
            Content.assemble((" ◂ ", "$quiet"), draft, _drawn(sampling), warning),
        )
        self._show()

    def show_targets(self, targets: str, sampling: Sampling, note: str) -> None:
        """Show the targets, the temperature if replies are sampled, and a note."""
        said = Content.assemble("  ", (f" {note} ", "reverse")) if note else Content("")
        self._models = _bold(targets), Content.assemble(_drawn(sampling), said)
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

    on_resize = _show


def _drawn(sampling: Sampling) -> Content:
    return Content("" if sampling.greedy else f"  T {sampling.temperature:g}").stylize("$quiet")


def _bold(text: str) -> Content:
    return Content.styled(text, "bold")


SIGN = "■ "


class Legend(Widget):
    """One line; if it does not fit, without signs, then cut."""

    ALLOW_SELECT = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.observed = False
        """Whether fates may be unknown."""
        self.tooltip = "what became of each token · f1 explains"

    def get_content_width(self, container: Any, viewport: Any) -> int:  # noqa: ARG002 the base class names them
        """The width with signs."""
        return self._line(SIGN, "  ").cell_length

    def render(self) -> Content:
        """The longest form that fits."""
        forms = [self._line(sign, gap) for sign, gap in ((SIGN, "  "), (SIGN, " "), ("", " "))]
        return next((form for form in forms if form.cell_length <= self.size.width), forms[-1])

    def _line(self, sign: str, gap: str) -> Content:
        fates = (*FATES, *([Fate.UNKNOWN] if self.observed else []))
        parts = (((sign, f"$fate-{fate.value}"), (fate.value, fate_style(fate))) for fate in fates)
        return Content(gap).join(Content.assemble(*part) for part in parts)


BAR = 36
SHOWS = 14
"""Cells before an explanation or a prompt."""
NAME = (("spec", Fate.ACCEPTED), ("ulate", Fate.REJECTED), ("chat", Fate.CORRECTION))
MOTTO = "the drafter guesses, the target checks: the same answer, sooner"


class Welcome(Widget):
    """The name is drawn as a round: drafted and accepted, rejected, corrected."""

    ALLOW_SELECT = False
    _state: Loading | str = Loading("import", "starting", None, 0.0)
    _failed = False
    offering = True
    """Whether prompts are offered: not in a replay."""

    def show(self, state: Loading | str, *, failed: bool = False) -> None:
        """Show progress, or a sentence."""
        self._state, self._failed = state, failed
        self.refresh(layout=True)

    def render(self) -> Content:
        """All lines; the style sheet centres the block."""
        name = ((part, f"bold {fate_style(fate)}") for part, fate in NAME)
        lines = [Content.assemble(*name), Content.styled(MOTTO, "$quiet"), Content("")]
        ending, offers, explained = self._progress(), self._offers(), [*starmap(_explained, FATES.items()), Content("")]
        room, width = self.size.height - len(lines) - len(ending), max(line.cell_length for line in explained)
        if room < len(offers):
            offers = []
        if room >= len(explained) + len(offers) and width <= self.size.width:
            lines += explained
        offers = [line.truncate(self.size.width, ellipsis=True) for line in offers]
        return Content("\n").join([*lines, *ending, *offers])

    def _offers(self) -> list[Content]:
        """Example prompts to click on, and the keys for them."""
        if not self.offering or self._failed:
            return []
        lines = [Content("")]
        for place, prompt in enumerate(FIRST_PROMPTS):
            line = Content.assemble((prompt.shows.ljust(SHOWS), "$primary"), (prompt.text, "$quiet"))
            lines.append(line.stylize(Style.from_meta({"@click": f"screen.offer({place})"})))
        tour = Content.styled("/tour", "$primary").stylize(Style.from_meta({"@click": "app.run('tour')"}))
        return [*lines, Content.assemble(("tab tries one · ", "$quiet"), tour, (" explains it all", "$quiet"))]

    def _progress(self) -> list[Content]:
        if isinstance(self._state, str):
            return [Content.styled(self._state, "bold $error" if self._failed else "$foreground")]
        share = self._state.fraction
        full, empty = meter(share, BAR)
        text = escape_controls(self._state.text) + ("" if share is None else f"  {share * 100:.0f} %")
        return [Content.assemble((full, "$primary"), (empty, "$border")), Content.styled(text, "$foreground")]


def _explained(fate: Fate, meaning: str) -> Content:
    """The meaning of a colour."""
    name = Content.assemble(("■ ", f"$fate-{fate.value}"), (fate.value, fate_style(fate)))
    return Content.assemble(name.pad_right(SHOWS - name.cell_length), (meaning, "$quiet"))
