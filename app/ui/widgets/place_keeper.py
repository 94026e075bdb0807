"""What is read stays where it is while lines above it come and go."""

from __future__ import annotations

from typing import NamedTuple

from textual.scroll_view import ScrollView

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
