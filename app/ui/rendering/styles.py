"""Styles of tokens, transcripts, timelines and alignments.

The fates have Okabe and Ito's colour-blind safe colours, and each also has an attribute, which stays when colours are
off. Plain tokens have the terminal's own foreground.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.segment import Segment
from rich.style import Style

from specchat.app.chat.rounds import CHOSEN
from specchat.app.chat.second_reading import Had
from specchat.app.sources.stepper import Part
from specchat.app.ui.rendering.token_lines import FOLDED, TITLE, Piece
from specchat.engine import Fate, Round

if TYPE_CHECKING:
    from textual.widget import Widget

GREEN = "#009e73"
VERMILION = "#d55e00"
ORANGE = "#e69f00"
SKY_BLUE = "#56b4e9"

FATE_STYLES: dict[Fate, str] = {
    Fate.ACCEPTED: GREEN,
    Fate.REJECTED: f"strike dim {VERMILION}",
    Fate.DISCARDED: "dim",
    Fate.CORRECTION: f"underline {ORANGE}",
    Fate.BONUS: f"bold {SKY_BLUE}",
    Fate.PLAIN: "",
    Fate.UNKNOWN: "italic",
}
"""Rich style of each fate, for text outside the app."""

TOKEN_CLASSES = {f"token--{fate.value}" for fate in Fate}
PENDING = "pending"
"""The style of drafted tokens that are not verified yet."""
OTHER_STYLES = (PENDING, FOLDED, CHOSEN, TITLE)
"""Styles of tokens that are not fates."""
_PARTS = (
    "prompt", "mark", "link", "queued", "figures", "error", "caret", "text", "number", "cursor", "round", "untold",
)  # fmt: skip
PART_CLASSES = {f"transcript--{part}" for part in _PARTS} | {f"token--{name}" for name in OTHER_STYLES}

TIMELINE_PARTS = ("draft", "verify", "rest", "lane", "picked", "empty")
"""Component classes of a timeline, besides those of tokens."""

HAD_STYLES = {had: f"had--{had.value.lower().replace(' ', '-')}" for had in Had}
"""The component class of each class of aligned tokens."""
UNREAD, CURSOR, QUIET = "had--unread", "had--cursor", "had--quiet"
LETTERS = "A", "B"
"""Names of the two drafters."""
ALONE = Had.ONLY_A, Had.ONLY_B
"""The class of the tokens that only one drafter matches."""
HAD_CLASSES = {*HAD_STYLES.values(), UNREAD, CURSOR, QUIET}


@dataclass(frozen=True, slots=True)
class TranscriptStyles:
    """The resolved styles of a transcript for one theme."""

    fates: dict[str, Style]
    spaces: dict[str, Style]
    """The same without lines, for white space."""
    base: Style
    prompt: Style
    mark: Style
    link: Style
    queued: Style
    figures: Style
    error: Style
    caret: Style
    text: Style
    number: Style
    cursor: Style
    """Added to the style of the selected token."""
    round: Style
    """Added to the styles of the tokens of its round."""
    untold: Style
    """Added to the styles of messages that the model did not receive."""

    @classmethod
    def of(cls, base: Style, component: Callable[[str], Style]) -> TranscriptStyles:
        """The styles from a widget's own style and its component classes."""
        fates = {name: component(f"token--{name}") for name in (*Fate, *OTHER_STYLES)}
        plain = Style(underline=False, strike=False)
        parts = {part: component(f"transcript--{part}") for part in _PARTS}
        parts["round"] = Style(bgcolor=parts["round"].bgcolor)
        parts["untold"] = Style(color=parts["untold"].color)
        return cls(fates, {fate: style + plain for fate, style in fates.items()}, base, **parts)

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
                own = own + (self.cursor if piece.token == cursor else self.round)
            if own is not style and text:
                yield Segment(text, style)
                text = ""
            text, style = text + piece.text, own
        if text:
            yield Segment(text, style)


def timeline_styles(timeline: Widget) -> dict[str, Style]:
    """Styles of the parts of a bar, of tokens (`token--…`), of their signs (`sign--…`), and of empty cells (`base`).

    Resolving one style takes as long as drawing a line with all of them, so the caller caches the result.
    """
    styles = {part: timeline.get_component_rich_style(f"timeline--{part}") for part in TIMELINE_PARTS}
    for fate in Fate:
        styles[f"token--{fate.value}"] = token = timeline.get_component_rich_style(f"token--{fate.value}")
        styles[f"sign--{fate.value}"] = token + Style(strike=False, underline=False)  # lines would hide a sign
    styles["thin"] = Style(color=styles["draft"].color, bgcolor=styles["verify"].color)
    styles["base"] = timeline.rich_style
    return styles


def stepped(record: Round, part: Part) -> list[tuple[str, str]]:
    """The drafted tokens of a round that is shown in parts, with their styles."""
    drafted = [token for token in record.tokens() if token.place < len(record.drafted)]
    return [(token.text, PENDING if part is Part.DRAFTED else token.fate) for token in drafted]
