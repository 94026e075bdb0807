"""SVG pictures of whole conversations, however long."""

from __future__ import annotations

import io
from collections.abc import Iterable

from rich.console import Console
from rich.segment import Segment, Segments
from textual.strip import Strip

from specchat.app.ui.rendering.reply_block import COPY


def conversation_svg(title: str, strips: Iterable[Strip], width: int) -> str:
    """A whole conversation, however long, as it would look on a terminal that is high enough."""
    console = Console(
        width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor", record=True,
        legacy_windows=False, safe_box=False,
    )  # fmt: skip
    for strip in strips:
        shown = [
            Segment(" " * len(s.text), s.style) if s.text == COPY and s.style and s.style.meta else s for s in strip
        ]
        console.print(Segments([*shown, Segment.line()]), end="")
    return console.export_svg(title=title)
