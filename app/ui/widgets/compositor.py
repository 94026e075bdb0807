"""A compositor that asks only for the lines that are drawn, and only the widgets that are seen there."""

from __future__ import annotations

from collections.abc import Iterable

from textual._compositor import ChopsUpdate, Compositor
from textual.geometry import Region
from textual.strip import Strip


class NarrowCompositor(Compositor):
    """Textual's compositor, with partial updates limited to what has changed.

    Textual asks every widget whose container overlaps the rectangle around all changes for all of its lines, which for
    a line of a growing reply is nearly every line of the screen.
    """

    def __init__(self) -> None:
        super().__init__()
        self._changed: list[Region] | None = None
        """What a partial update draws; None while none is made."""

    def render_partial_update(self) -> ChopsUpdate | None:
        """What has changed since the last update; None if nothing has."""
        self._changed = list(self._dirty_regions)
        try:
            return super().render_partial_update()
        finally:
            self._changed = None

    def _get_renders(self, crop: Region | None = None) -> Iterable[tuple[Region, Region, list[Strip]]]:
        """Of each widget, from front to back: where its lines stand, twice, and the lines.

        What lies behind a widget that has all of a changed region is not seen there.
        """
        if self._changed is None:
            return super()._get_renders(crop)
        renders: list[tuple[Region, Region, list[Strip]]] = []
        changed = self._changed
        for widget, (region, clip) in self.visible_widgets.items():
            seen = region.intersection(clip)
            parts = [part for each in changed if (part := each.intersection(seen))]
            if not parts:
                continue
            first, end = min(part.y for part in parts), max(part.bottom for part in parts)
            lines = Region(seen.x, first, seen.width, end - first)
            renders.append((lines, lines, widget.render_lines(lines.translate(-region.offset))))
            changed = [each for each in changed if not seen.contains_region(each)]
            if not changed:
                break
        return renders
