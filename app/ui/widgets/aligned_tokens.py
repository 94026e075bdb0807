"""The tokens of a reply, coloured by the drafters that matched them: both, one, or neither."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.events import Click, Resize
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from specchat.app.chat.aligned_reply import AlignedReply, Had
from specchat.app.ui.keys import named
from specchat.app.ui.rendering.styles import CURSOR, HAD_CLASSES, HAD_STYLES, UNREAD
from specchat.app.ui.rendering.token_lines import END, LINE_END, Piece, TokenLines, draft_text

_PART = "‥"
"""A token that is no whole character."""


class AlignedTokens(ScrollView, can_focus=True):
    """Running text with a cursor on one token; arrows move it, and letters go on to what one drafter alone had."""

    COMPONENT_CLASSES: ClassVar[set[str]] = HAD_CLASSES
    BINDINGS: ClassVar[list[BindingType]] = named(
        "aligned-tokens",
        Binding("a", "only('only A', 1)", "next only A"),
        Binding("b", "only('only B', 1)", "next only B"),
        Binding("A,shift+a", "only('only A', -1)", "only A before", show=False),
        Binding("B,shift+b", "only('only B', -1)", "only B before", show=False),
        Binding("n", "only('neither', 1)", "next neither", show=False),
        Binding("left", "move(-1)", "token before", show=False),
        Binding("right", "move(1)", "token after", show=False),
        Binding("up", "move_line(-1)", "line above", show=False),
        Binding("down", "move_line(1)", "line below", show=False),
        Binding("home", "move_end(0)", "first token", show=False),
        Binding("end", "move_end(-1)", "last token", show=False),
    )
    ALLOW_SELECT = False

    @dataclass
    class Moved(Message):
        """The cursor stands on another token."""

        place: int

    def __init__(self, texts: Sequence[str], **options: Any) -> None:
        """Make it; `texts` are those of the reply's tokens, which have no class yet."""
        super().__init__(**options)
        self._signs = [_sign(text, last=place == len(texts) - 1) for place, text in enumerate(texts)]
        self._aligned: AlignedReply | None = None
        self.place = 0
        """The token with the cursor."""
        self._lines = TokenLines(1)
        self._styles: dict[str, Style] = {}

    def show(self, aligned: AlignedReply | None) -> None:
        """Colour the tokens; None shows them without."""
        self._aligned = aligned
        self._wrap()

    def on_resize(self, event: Resize) -> None:  # noqa: ARG002 the handler's signature
        """Other lines."""
        self._wrap()

    def notify_style_update(self) -> None:
        """Another theme."""
        super().notify_style_update()
        self._styles = {}

    def render_line(self, y: int) -> Strip:
        """One line of tokens."""
        width, number = self.scrollable_content_region.width, y + self.scroll_offset.y
        pieces = self._lines.lines[number] if number < len(self._lines.lines) else []
        strip = Strip([Segment(piece.text, self._style(piece)) for piece in pieces])
        return strip.adjust_cell_length(width, self.rich_style)

    def on_click(self, event: Click) -> None:
        """The token below the mouse."""
        offset = event.get_content_offset(self)
        if (
            offset is not None
            and (found := self._lines.token_at(offset.y + self.scroll_offset.y, offset.x, nearest=True)) is not None
        ):
            self.go_to(found)

    def go_to(self, place: int) -> None:
        """Put the cursor on a token and bring that into sight."""
        self.place = min(max(place, 0), max(self._count - 1, 0))
        self._bring_into_sight()
        self.refresh()
        self.post_message(self.Moved(self.place))

    def action_only(self, had: str, step: int) -> None:
        """The next token of a class, or the one before."""
        if self._aligned is None:
            return
        found = self._aligned.next(self.place, Had(had), step)
        if found is None:
            self.notify(f"no token {'after' if step > 0 else 'before'} this one that {had} has")
        else:
            self.go_to(found)

    def action_move(self, step: int) -> None:
        """The next token, or the one before."""
        self.go_to(self.place + step)

    def action_move_end(self, which: int) -> None:
        """The first token, or the last."""
        self.go_to(range(self._count)[which] if self._count else 0)

    def action_move_line(self, step: int) -> None:
        """The nearest token on a line above or below."""
        own = [y for y, line in enumerate(self._lines.lines) if any(piece.token == self.place for piece in line)]
        if not own:
            return
        line = own[-1]  # one of line ends stands on several
        before = self._lines.column_of(self.place, line)
        line += step
        while 0 <= line < len(self._lines.lines):
            found = self._lines.token_at(line, before, nearest=True)
            if found is not None and found != self.place:
                self.go_to(found)
                return
            line += step

    @property
    def _count(self) -> int:
        return len(self._signs) if self._aligned is None else len(self._aligned.had)

    def _wrap(self) -> None:
        """Make the lines, and show where the cursor is."""
        read = [UNREAD] * len(self._signs)
        names = read if self._aligned is None else [HAD_STYLES[had] for had in self._aligned.had]
        self._lines = TokenLines(self.scrollable_content_region.width)
        self._lines.append(zip(self._signs, names, strict=False), 0)
        self.virtual_size = Size(self._lines.width, len(self._lines.lines))
        self._bring_into_sight()
        self.refresh()

    def _bring_into_sight(self) -> None:
        line, height = self._lines.line_of(self.place), self.scrollable_content_region.height
        if line is not None and not self.scroll_offset.y <= line < self.scroll_offset.y + height:
            self.scroll_to(y=max(line - height // 2, 0), animate=False, immediate=True, force=True)

    def _style(self, piece: Piece) -> Style:
        name = piece.fate
        if name not in self._styles:
            self._styles[name] = self.get_component_rich_style(name)
        style = self._styles[name]
        if piece.blank:
            style += Style(underline=False)
        if piece.token == self.place and self._aligned is not None:
            style += self.get_component_rich_style(CURSOR, partial=True)
        return style


def _sign(text: str, *, last: bool) -> str:
    """A token's text as it is drawn: invisible characters are signs."""
    if not text:
        return END if last else _PART
    return text.replace("\n", f"{LINE_END}\n") if text.strip(" \t") else draft_text(text)
