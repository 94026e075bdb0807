"""The visible part of a transcript: it follows the end, or keeps its place while lines above come and go."""

from typing import NamedTuple

from textual.geometry import Offset, Region, Size
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.widget import Widget

from specchat.app.ui.rendering.block import TurnOrReply
from specchat.app.ui.rendering.block_stack import BlockStack
from specchat.app.ui.rendering.token_cursor import Spot, TokenCursor


class Place(NamedTuple):
    """A scroll position by its content, so that it can be found again after lines were wrapped anew."""

    part: TurnOrReply | None
    """The first one with a visible line."""
    below: int
    """Lines between its beginning and the first visible line."""
    spot: Spot | None
    """The first visible token; None without one, as in Markdown."""
    above: int
    """Visible lines above that token."""


class Viewport:
    """Scrolls one view: to its end while `following`, otherwise to lines and places."""

    def __init__(self, view: ScrollView, stack: BlockStack, cursor: TokenCursor) -> None:
        self.following = True
        """Whether the end is kept visible as the view grows."""
        self._view, self._stack, self._cursor = view, stack, cursor
        self._scrolling = False
        """Whether this class scrolls, not the user."""
        self._selected_lines: tuple[int, int] | None = None
        """The lines selected by key: from an anchor to the line that the last key reached."""

    @property
    def place(self) -> Place:
        """The current place."""
        top, height = self._view.scroll_offset.y, max(self._view.size.height, 1)
        first, part = next(iter(self._stack.parts_between(top, top + height)), (top, None))
        seen = ((self._cursor.at(line, 0, nearest=True), line - top) for line in range(top, top + height))
        spot, above = next(((spot, above) for spot, above in seen if spot is not None), (None, 0))
        return Place(part, top - first, spot, above)

    def restore(self, place: Place) -> None:
        """Scroll to a place, unless it no longer exists."""
        line = None if place.spot is None else self._cursor.line_of(place.spot)
        if line is not None:
            self._scroll(line - place.above)
        elif place.part is not None and (found := self._stack.block_of(place.part)) is not None:
            first, block = found
            self._scroll(first + min(place.below, block.height - 1))

    def show_line(self, line: int, share: int) -> None:
        """Scroll to a line unless it is visible; 1 / `share` of the view is above it then."""
        top, height = self._view.scroll_offset.y, self._view.size.height
        if not top <= line < top + height:
            self.jump(line - height // share)

    def jump(self, line: int) -> None:
        """Scroll until a line is the first visible one; the end is followed if that shows it."""
        self.following = False
        self._scroll(line)
        # A view without layout says that it is at its end.
        self.following = bool(self._view.size) and self._view.is_vertical_scroll_end

    def refresh(self, first: int, end: int) -> None:
        """Redraw the visible ones of these lines; otherwise Textual would also redraw widgets below the view."""
        top = self._view.scroll_offset.y
        first, end = max(first, top), min(end, top + self._view.size.height)
        if first < end:
            self._view.refresh_lines(first, end - first)

    def grow(self, size: Size) -> None:
        """Set the size of the content, and keep its end visible.

        Textual lays out the whole screen when `virtual_size` changes; only a scrollbar that appears or disappears
        needs that. Without this exception, a new line of a reply costs as much as thirty drawn ones.
        """
        view, room = self._view, self._view.container_size.height
        self._scrolling = True
        if (view.virtual_size.height > room) is (size.height > room):
            view.set_reactive(Widget.virtual_size, size)
            if view.show_vertical_scrollbar:
                view.vertical_scrollbar.window_virtual_size, view.vertical_scrollbar.window_size = size.height, room
            view.scroll_y = view.validate_scroll_y(view.scroll_y)
        else:
            view.virtual_size = size
        self._scrolling = False
        self.keep_end()

    def keep_end(self) -> None:
        """Scroll to the end, if it is followed."""
        if self.following:
            self._scrolling = True
            # Forced: the scrollbar that would allow it exists only after the next layout.
            self._view.scroll_end(animate=False, immediate=True, force=True, x_axis=False)
            self._scrolling = False

    def on_scrolled(self) -> None:
        """Follow the end if the user scrolled to it; stop if the user scrolled away."""
        if not self._scrolling:
            self.following = self._view.is_vertical_scroll_end

    def select_lines(self, by: int) -> None:
        """Select one more line below (`by` 1) or above (-1), and scroll to it.

        The first call selects the first visible line going down, the last one going up.
        """
        view, last = self._view, self._stack.height - 1
        (width, height), top = view.size, view.scroll_offset.y
        if self._selected_lines is None or view.text_selection is None:
            anchor = line = min(top if by > 0 else top + height - 1, last)
        else:
            anchor, line = self._selected_lines
            line = min(max(line + by, 0), last)
        self._selected_lines = anchor, line
        begin, end = sorted((anchor, line))
        view.screen.selections = {view: Selection(Offset(0, begin), Offset(width, end))}
        view.scroll_to_region(Region(0, line, 1, 1), animate=False)

    def _scroll(self, line: int) -> None:
        self._view.scroll_to(y=max(line, 0), animate=False, immediate=True, force=True)
