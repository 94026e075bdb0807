"""Styles of tokens, transcripts, and widgets that draw themselves.

The fates have Okabe and Ito's colour-blind safe colours, and each also has an attribute, which stays when colours are
off. Plain tokens have the terminal's own foreground.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from rich.segment import Segment
from rich.style import Style
from textual.widget import Widget

from specchat.app.chat.reply import CHOSEN
from specchat.app.sources.source import Part
from specchat.app.ui.rendering.token_lines import FOLDED, TITLE, Piece
from specchat.engine import Fate, Round

GREEN = "#009e73"
VERMILION = "#d55e00"
ORANGE = "#e69f00"
SKY_BLUE = "#56b4e9"

FATE_STYLES: dict[Fate, str] = {
    Fate.ACCEPTED: GREEN, Fate.REJECTED: f"strike {VERMILION}", Fate.DISCARDED: "italic",
    Fate.CORRECTION: f"underline {ORANGE}", Fate.BONUS: f"bold {SKY_BLUE}", Fate.PLAIN: "", Fate.UNKNOWN: "italic",
}  # fmt: skip
"""Rich style of each fate, for text outside the app."""


def fate_style(fate: Fate) -> str:
    """Style of a fate in the theme's variables, for content of widgets."""
    attributes = " ".join(word for word in FATE_STYLES[fate].split() if not word.startswith("#"))
    return f"{attributes} $fate-{fate.value}"


TOKEN_CLASSES = {f"token--{fate.value}" for fate in Fate}
PENDING = "pending"
"""The style of drafted tokens that are not verified yet."""
OTHER_STYLES = (PENDING, FOLDED, CHOSEN, TITLE)
"""Styles of tokens that are not fates."""
_PARTS = (
    "prompt", "mark", "link", "queued", "figures", "error", "caret", "text", "number",
    "cursor", "round",  # added to the styles of the selected token, and of other tokens of its round
    "untold",  # added to the styles of messages that the model did not receive
)  # fmt: skip
PART_CLASSES = {f"transcript--{part}" for part in _PARTS} | {f"token--{name}" for name in OTHER_STYLES}


@dataclass(frozen=True, slots=True)
class TranscriptStyles:
    """The resolved styles of a transcript for one theme."""

    base: Style
    fates: dict[str, Style]
    spaces: dict[str, Style]
    """Styles of fates without lines, for white space."""
    parts: dict[str, Style]

    @classmethod
    def of(cls, base: Style, component: Callable[[str], Style]) -> TranscriptStyles:
        """The styles from a widget's own style and its component classes."""
        fates = {name: component(f"token--{name}") for name in (*Fate, *OTHER_STYLES)}
        plain = Style(underline=False, strike=False)
        parts = {part: component(f"transcript--{part}") for part in _PARTS}
        parts["round"] = Style(bgcolor=parts["round"].bgcolor)
        parts["untold"] = Style(color=parts["untold"].color)
        return cls(base, fates, {fate: style + plain for fate, style in fates.items()}, parts)

    def __getitem__(self, part: str) -> Style:
        return self.parts[part]

    def segments(self, pieces: Iterable[Piece], cursor: int | None, around: range) -> Iterator[Segment]:
        """Pieces of a line as segments; neighbours of one style become one segment, which is faster to draw.

        Args:
            pieces: One line of tokens.
            cursor: The selected token.
            around: The tokens of its round.
        """
        text, style = "", Style.null()
        for piece in pieces:
            own = (self.spaces if piece.blank else self.fates)[piece.fate]
            if piece.token in around:
                own = own + self["cursor" if piece.token == cursor else "round"]
            if own is not style and text:
                yield Segment(text, style)
                text = ""
            text, style = text + piece.text, own
        if text:
            yield Segment(text, style)


def stepped(record: Round, part: Part) -> list[tuple[str, str]]:
    """The drafted tokens of a round that is shown in parts, with their styles."""
    drafted = [token for token in record.tokens() if token.place < len(record.drafted)]
    return [(token.text, PENDING if part is Part.DRAFTED else token.fate) for token in drafted]


class StyledWidget(Widget):
    """A widget that draws itself in the styles of its component classes; its text cannot be selected."""

    ALLOW_SELECT = False

    def style_of(self, name: str) -> Style:
        """The style of a component class."""
        return self.get_component_rich_style(name, partial=True)
