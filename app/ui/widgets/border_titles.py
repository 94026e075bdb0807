"""Changing what stands in the border of a widget, and drawing no more than that."""

from __future__ import annotations

from textual.geometry import Region
from textual.widget import Widget


def show_titles(widget: Widget, title: str, subtitle: str) -> None:
    """Show these lines of markup in the upper and the lower border.

    Textual's own way draws the whole widget again, with all that is in it.
    """
    widget._border_title, widget._border_subtitle = widget.render_str(title), widget.render_str(subtitle)
    width, height = widget.outer_size
    left, top = widget.content_offset
    widget.refresh(*(Region(-left, y - top, width, 1) for y in (0, height - 1)))
