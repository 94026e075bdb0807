"""A compositor that asks only the widgets in the part of the screen that is drawn."""

from __future__ import annotations

from collections.abc import Iterable

from textual._compositor import Compositor
from textual.geometry import Region
from textual.strip import Strip


class NarrowCompositor(Compositor):
    """Textual's compositor, limited to the widgets that overlap the drawn region.

    Textual asks all whose container overlaps it, which for a line of a growing reply is nearly every widget.
    """

    def _get_renders(self, crop: Region | None = None) -> Iterable[tuple[Region, Region, list[Strip]]]:
        if crop is None:
            return super()._get_renders()
        whole = self.visible_widgets
        self._visible_widgets = {widget: at for widget, at in whole.items() if crop.overlaps(at[0])}
        try:
            return list(super()._get_renders(crop))
        finally:
            self._visible_widgets = whole
