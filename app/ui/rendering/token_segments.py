"""Tokens as segments of a line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.segment import Segment
from rich.style import Style

from specchat.app.sources.stepper import Part
from specchat.app.ui.rendering.token_lines import Piece
from specchat.app.ui.rendering.transcript_styles import PENDING, TranscriptStyles
from specchat.engine import Round


def stepped(record: Round, part: Part) -> list[tuple[str, str]]:
    """The tokens of a round that is shown in parts."""
    drafted = [token for token in record.tokens() if token.place < len(record.drafted)]
    return [(token.text, PENDING if part is Part.DRAFTED else token.fate) for token in drafted]


def segments(pieces: Iterable[Piece], styles: TranscriptStyles, cursor: int | None, around: range) -> Iterator[Segment]:
    """Neighbours of one style become one segment: fewer of them are quicker to draw."""
    text, style = "", Style.null()
    for piece in pieces:
        own = (styles.spaces if piece.blank else styles.fates)[piece.fate]
        if piece.token in around:
            own = own + (styles.cursor if piece.token == cursor else styles.round)
        if own is not style and text:
            yield Segment(text, style)
            text = ""
        text, style = text + piece.text, own
    if text:
        yield Segment(text, style)
