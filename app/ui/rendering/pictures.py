"""SVG pictures: of a whole conversation with its legend, and without the buttons of a window that Rich draws."""

import io
import re
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.segment import Segment, Segments
from textual.strip import Strip

from specchat.app.ui.rendering.block import INDENT
from specchat.app.ui.rendering.figures import FATES
from specchat.app.ui.rendering.reply_notes import LINK_TEXTS
from specchat.app.ui.rendering.styles import TranscriptStyles
from specchat.engine import Fate

_BUTTONS = re.compile(r"<g [^>]*>\s*(<circle [^>]*/>\s*)+</g>")


def without_buttons(picture: str) -> str:
    """The picture without the buttons of its window."""
    return _BUTTONS.sub("", picture, count=1)


def legend(strips: Sequence[Strip], styles: TranscriptStyles) -> list[Strip]:
    """A line with the fates of these tokens, for pictures without a header; none without coloured tokens."""
    colours = {style.color for strip in strips for _, style, _ in strip if style is not None}
    found = [fate for fate in FATES if styles.fates[fate].color in colours]
    if set(found) <= {Fate.PLAIN}:
        return []
    names = ((Segment(fate.value, styles.fates[fate]), Segment("  ", styles.base)) for fate in found)
    return [Strip([Segment(" " * INDENT, styles.base), *(segment for name in names for segment in name)])]


def conversation_svg(title: str, strips: Iterable[Strip], width: int) -> str:
    """A whole conversation, however long, as it would look on a terminal that is high enough."""
    console = Console(
        width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor", record=True,
        legacy_windows=False, safe_box=False,
    )  # fmt: skip
    for strip in strips:
        shown = [
            Segment(" " * len(s.text), s.style) if s.text in LINK_TEXTS and s.style and s.style.meta else s
            for s in strip
        ]
        console.print(Segments([*shown, Segment.line()]), end="")
    return without_buttons(console.export_svg(title=title))
