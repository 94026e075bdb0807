"""What is attached to the prompt that is being written, in a line above it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from rich.style import Style
from rich.text import Text
from textual.widget import Widget

from specchat.app.chat.attachments import label
from specchat.app.sanitize import escape_controls
from specchat.app.storage.attachment import Attachment

SIGN, REFUSED = "▤", "✗"
MOST = 4
"""Lines at most."""
OPENS = "  alt+a opens"


class Chips(Widget):
    """Hidden while nothing is attached. A click opens the list of attachments."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"chips--name", "chips--refused", "chips--about"}
    ALLOW_SELECT = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._shown: tuple[tuple[str, ...], tuple[str, ...]] = (), ()
        self.display = False

    def show(self, attachments: Sequence[Attachment], refused: Sequence[str]) -> None:
        """Follow what is attached, and say what cannot be."""
        shown = tuple(escape_controls(label(one)) for one in attachments), tuple(map(escape_controls, refused))
        if shown != self._shown:
            self._shown = shown
            self.display = any(shown)
            self.refresh(layout=True)

    def render(self) -> Text:
        """A line for each refusal, and one for all that is attached, or for each where they do not fit into one."""
        names, refused = self._shown
        width, opens = max(self.content_size.width, 1), (OPENS, self._style("about"))
        chips = [Text(f"{SIGN} {name}", self._style("name")) for name in names]
        lines = [Text(f"{REFUSED} {sentence}", self._style("refused")) for sentence in refused]
        if chips and (together := Text("  ").join(chips)).cell_len + len(OPENS) <= width:
            chips = [Text.assemble(together, opens)]
        elif chips:
            more = len(chips) - MOST
            chips = [*chips[:MOST], Text.assemble(f"and {more} more", opens)] if more > 0 else chips
        lines += chips
        for line in lines:
            line.truncate(width, overflow="ellipsis")
        return Text("\n", no_wrap=True, overflow="crop").join(lines)

    async def on_click(self) -> None:
        """Open the list."""
        await self.run_action("app.run('attachments')")

    def _style(self, part: str) -> Style:
        return self.get_component_rich_style(f"chips--{part}", partial=True)
