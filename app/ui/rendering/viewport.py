"""What is read stays where it is while lines above it come and go."""

from __future__ import annotations

from typing import NamedTuple

from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.widget import Widget

from specchat.app.ui.rendering.block_stack import BlockStack
from specchat.app.ui.rendering.token_cursor import Spot, TokenCursor


class Place(NamedTuple):
    """A place in a conversation, by what stands there."""

    block: int
    """Index of the block that the first line in sight belongs to."""
    below: int
    """Lines between the beginning of that block and the first line in sight."""
    spot: Spot | None
    """The first token in sight; None where there is none, as in Markdown."""
    above: int
    """Lines in sight above that token."""


class PlaceKeeper:
    """Finds a place of a scroll view again after its lines were wrapped anew."""

    def __init__(self, view: ScrollView, stack: BlockStack, cursor: TokenCursor) -> None:
        self._view = view
        self._stack = stack
        self._cursor = cursor

    @property
    def place(self) -> Place:
        """What is in sight."""
        top, height = self._view.scroll_offset.y, self._view.size.height
        block = min(self._stack.number_at(top) or 0, max(len(self._stack.blocks) - 1, 0))
        seen = ((self._cursor.at(line, 0, nearest=True), line - top) for line in range(top, top + height))
        spot, above = next(((spot, above) for spot, above in seen if spot is not None), (None, 0))
        return Place(block, top - self._stack.tops[block], spot, above)

    def go_to(self, place: Place) -> None:
        """Bring a place into sight as it was, unless it has gone."""
        line = self._line(place)
        if line is not None:
            self._view.scroll_to(y=line, animate=False, immediate=True, force=True)

    def _line(self, place: Place) -> int | None:
        line = None if place.spot is None else self._cursor.line_of(place.spot)
        if line is not None:
            return max(line - place.above, 0)
        if place.block >= len(self._stack.blocks):
            return None
        return self._stack.tops[place.block] + min(place.below, self._stack.blocks[place.block].height - 1)


class EndFollower:
    """Scrolls one view to its end while `following` holds."""

    def __init__(self, view: ScrollView) -> None:
        self.following = True
        self._view = view
        self._moving = False
        """Whether it is not the user who scrolls."""

    def grow(self, size: Size) -> None:
        """Set the size of the content, and keep its end in sight.

        Textual lays the whole screen out anew when `virtual_size` changes; only a scrollbar that comes or goes is
        worth it. Without this, each new line of a reply would cost as much as thirty drawn ones.
        """
        view, room = self._view, self._view.container_size.height
        self._moving = True
        if (view.virtual_size.height > room) is (size.height > room):
            view.set_reactive(Widget.virtual_size, size)
            if view.show_vertical_scrollbar:
                view.vertical_scrollbar.window_virtual_size, view.vertical_scrollbar.window_size = size.height, room
            view.scroll_y = view.validate_scroll_y(view.scroll_y)
        else:
            view.virtual_size = size
        self._moving = False
        self.keep_end()

    def keep_end(self) -> None:
        """Scroll to the end, if it is followed."""
        if self.following:
            self._moving = True
            # Forced: the scrollbar that would allow it is there only after the next layout.
            self._view.scroll_end(animate=False, immediate=True, force=True, x_axis=False)
            self._moving = False

    def scrolled(self) -> None:
        """The view has moved: a user who scrolls to the end follows it, one who scrolls away does not."""
        if not self._moving:
            self.following = self._view.is_vertical_scroll_end
