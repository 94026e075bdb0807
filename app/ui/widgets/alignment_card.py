"""What two drafters had for one token of a reply."""

from __future__ import annotations

from typing import Any, ClassVar

from rich.style import Style
from rich.text import Text
from textual.geometry import Size
from textual.widget import Widget

from specchat.app.chat.aligned_reply import AlignedReply
from specchat.app.ui.rendering.draft_signs import END, draft_text
from specchat.app.ui.rendering.had_styles import ALONE, HAD_CLASSES, HAD_STYLES, LETTERS, QUIET
from specchat.app.ui.widgets.alignment_legend import WIDE

_ORDINALS = "first", "second", "third"


class AlignmentCard(Widget):
    """The token, its class, and a line or two for each drafter."""

    COMPONENT_CLASSES: ClassVar[set[str]] = HAD_CLASSES
    ALLOW_SELECT = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._aligned: AlignedReply | None = None
        self._place = 0

    def show(self, aligned: AlignedReply | None, place: int) -> None:
        """Show a token by its place; nothing where nothing is known yet."""
        self._aligned, self._place = aligned, place
        self.refresh(layout=True)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002 the base class names them
        """As many lines as there are in this width."""
        return len(self._text(width).wrap(self.app.console, width))

    def render(self) -> Text:
        """The token, then A, then B."""
        return self._text(self.content_size.width)

    def _text(self, width: int) -> Text:
        aligned = self._aligned
        if aligned is None:
            return Text()
        had, text = aligned.had[self._place], draft_text(aligned.texts[self._place]) or END
        head = Text.assemble(
            (f"token {self._place + 1} of {len(aligned.had)}  ", self._style(QUIET)),
            (text, self._style(HAD_STYLES[had])),
            (f"  {had.value}", self._style(QUIET)),
        )
        wide = width >= WIDE
        return Text("\n").join([head, *(self._drafter(drafter, wide=wide) for drafter in range(2))])

    def _drafter(self, drafter: int, *, wide: bool) -> Text:
        assert self._aligned is not None
        names = [figures.drafter for figures in self._aligned.alignment.figures]
        gap = " " * (max(map(len, names)) - len(names[drafter]) + 2) if wide else "\n  "
        return Text.assemble(
            (LETTERS[drafter], self._style(HAD_STYLES[ALONE[drafter]])), f" {names[drafter]}{gap}", self._says(drafter)
        )

    def _says(self, drafter: int) -> Text:
        """What the drafter proposed for the token, and what became of it."""
        assert self._aligned is not None
        alignment = self._aligned.alignment
        place = alignment.places[drafter][self._place]
        quiet = self._style(QUIET)
        if not place.offered:
            return Text("its draft had ended" if place.depth else "drafted nothing", quiet)
        names = [draft_text(alignment.names[token]) for token in place.offered]
        if alignment.temperature:
            words = f"proposed {_listed(names)} · accepted here with probability {place.beta:.2f}"
        elif place.had:
            order = _ORDINALS[place.depth] if place.depth < len(_ORDINALS) else f"{place.depth + 1}th"
            others = f" · beside {_listed(names[:-1])}" if len(names) > 1 else ""
            words = f"has it, {order} of its draft{others}"
        else:
            words = f"proposed {_listed(names)}"
        return Text(words, quiet)

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(name, partial=True)


def _listed(names: list[str]) -> str:
    """Tokens in quotation marks, since they begin with spaces."""
    return ", ".join(f"‘{name}’" for name in names)
