"""A group of figures in a frame, for the panel and the inspector."""

from typing import Any, ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.geometry import Region
from textual.strip import Strip
from textual.style import Style as VisualStyle

from specchat.app.chat.reply import Reply
from specchat.app.chat.reply_stage import Stage
from specchat.app.settings.settings import AUTO
from specchat.app.sources.observed import OBSERVED
from specchat.app.ui.rendering.figures import cut, meter, one_line
from specchat.app.ui.rendering.styles import StyledWidget
from specchat.engine import Metrics, Ready

LABEL = 13
"""Cells of a label and the space after it."""
NARROWEST = 12
NONE = "none"
"""The drafter of replies without drafts."""


class Card(StyledWidget):
    """Lines of text in a frame. A line is drawn again only if it has changed."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "card--figure", "card--label", "card--full", "card--empty", "card--spark", "card--target", "card--draft",
        "card--residual",
    }  # fmt: skip

    def __init__(self, title: str, **options: Any) -> None:
        super().__init__(**options)
        self.border_title = title
        self._shown: list[Text] = []
        self._room = 0
        self._styles: dict[str, Style] = {}
        self._old_looks = False
        self._drawn: dict[int, tuple[tuple[Text, int, VisualStyle], Strip]] = {}
        """Each line as it was last drawn, and from what."""

    def rows(self) -> list[Text]:
        """The lines, as things now are."""
        raise NotImplementedError

    def update(self) -> None:
        """Draw again the lines that have changed; only a new number of them moves what is below."""
        before, self._shown = self._shown, self.rows()
        if len(self._shown) != len(before):
            self.refresh(layout=True)
        elif changed := [y for y, row in enumerate(self._shown) if row != before[y]]:
            self.refresh(*(Region(0, y, self.size.width, 1) for y in changed))

    def render_line(self, y: int) -> Strip:
        """One line; made anew only if it has changed, as most do not."""
        if self._old_looks:
            self._old_looks, self._shown = False, self.rows()
        width, style = self.size.width, self.visual_style
        row = self._shown[y] if y < len(self._shown) else Text()
        known = self._drawn.get(y)
        if known is None or known[0] != (row, width, style):
            base, console = style.rich_style, self.app.console
            segments = Segment.apply_style(row.render(console), base + console.get_style(row.style))
            known = self._drawn[y] = (row, width, style), Strip(segments).adjust_cell_length(width, base)
        return known[1]

    def notify_style_update(self) -> None:
        """Another theme."""
        super().notify_style_update()
        self._styles.clear()
        self._old_looks = True

    def get_content_height(self, container: Any, viewport: Any, width: int) -> int:  # noqa: ARG002 the base class names them
        """Number of lines at this width."""
        if width != self._room:
            self._room, self._old_looks = width, True
        return len(self.rows())

    @property
    def inner(self) -> int:
        """Cells of a line."""
        return max(self._room, NARROWEST)

    def style(self, part: str) -> Style:
        """The style of a part of the card."""
        if part not in self._styles:
            self._styles[part] = self.style_of(f"card--{part}")
        return self._styles[part]

    def label(self, text: str) -> tuple[str, Style]:
        """A quiet text."""
        return text, self.style("label")

    def headline(self, value: str, name: str) -> Text:
        """A main figure: its value, then its name."""
        return Text.assemble((value, self.style("figure")), " ", self.label(name))

    def row(self, name: str, value: str, part: str = "", column: int = LABEL) -> Text:
        """A figure: its name, then its value at this column; both are cut to the width."""
        value = cut(one_line(value), self.inner - LABEL)
        column = min(column, self.inner - cell_len(value))
        style = self.style(part) if part else Style.null()
        return Text.assemble(self.label(cut(name, column - 1).ljust(column)), (value, style))

    def wrapped(self, name: str, value: str) -> list[Text]:
        """A figure whose value may need several lines."""
        first, *others = Text(one_line(value)).wrap(self.app.console, max(self.inner - LABEL, 1))
        return [self.row(name, first.plain.rstrip()), *(Text(" " * LABEL).append_text(line) for line in others)]

    def meter(self, share: float | None, width: int, part: str = "full") -> Text:
        """A share as a line."""
        full, empty = meter(share, width)
        return Text.assemble((full, self.style(part)), (empty, self.style("empty")))

    def sentence(self, text: str) -> list[Text]:
        """A text in as many lines as it needs."""
        lines = list(Text(one_line(text), self.style("label")).wrap(self.app.console, self.inner, overflow="crop"))
        for line in lines:
            line.rstrip()
        return lines


class ReplyCard(Card):
    """Figures of one reply."""

    def __init__(self, title: str, **options: Any) -> None:
        super().__init__(title, **options)
        self.reply = Reply()
        self.held = False
        self.ready: Ready | None = None

    def show(self, reply: Reply, *, held: bool = False) -> None:
        """Show the figures of this reply, whose rounds may be held back; called again when they have changed."""
        self.reply, self.held = reply, held
        self.update()

    def collapse(self) -> None:
        """Take no room while there is nothing to show."""
        self.display = self.present

    @property
    def present(self) -> bool:
        """Whether there is a reply."""
        return bool(self.reply.request_id) or self.reply.stage is not Stage.WAITING

    @property
    def drafting(self) -> bool:
        """Whether the reply runs and drafts: then expected lines are kept free, so that no card moves."""
        reply = self.reply
        return reply.running and bool(reply.request_id) and self.drafter not in (NONE, OBSERVED)

    @property
    def drafter(self) -> str:
        """The reply's drafter; before its first round, the drafter of the settings."""
        reply, ready = self.reply, self.ready
        if reply.gamma == "0":
            return NONE
        if ready is not None and (ready.observed or reply.drafter == AUTO):
            return next(iter(ready.drafters), reply.drafter)
        return reply.drafter

    def _padded(self, rows: list[Text], lines: int) -> list[Text]:
        """The rows, filled up to the expected number of lines while the reply drafts."""
        return rows + [Text()] * (lines - len(rows) if self.drafting else 0)

    @property
    def metrics(self) -> Metrics:
        """What the figures are read from."""
        return self.reply.figures.metrics
