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
        """One line for all that is attached, and one for each refusal."""
        names, refused = self._shown
        lines = [Text(f"{REFUSED} {sentence}", self._style("refused")) for sentence in refused]
        if names:
            chips = Text("  ").join(Text(f"{SIGN} {name}", self._style("name")) for name in names)
            lines.append(Text.assemble(chips, ("  alt+a opens", self._style("about"))))
        for line in lines:
            line.truncate(max(self.content_size.width, 1), overflow="ellipsis")
        return Text("\n", no_wrap=True, overflow="crop").join(lines)

    async def on_click(self) -> None:
        """Open the list."""
        await self.run_action("app.open('attachments')")

    def _style(self, part: str) -> Style:
        return self.get_component_rich_style(f"chips--{part}", partial=True)
