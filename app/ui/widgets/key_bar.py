"""The keys at the bottom: as many as there is room for, and always those that lead out of every place."""

from __future__ import annotations

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.events import Resize
from textual.widget import Widget
from textual.widgets import Footer
from textual.widgets._footer import FooterKey

ALWAYS = ("quit", "app.quit", "pane('chats')", "stop", "leave", "back", "dismiss", "next_pane")
"""Actions whose keys are never left out: the end of the program, the list of chats, and the ways back."""
FIRST_TO_GO = (
    "timeline", "app.open('side_by_side')", "pane('panel')", "step", "app.open('controls')", "rejected",
    "app.open('definitions')", "inspect", "markdown", "new_chat",
)  # fmt: skip
"""Actions whose keys are left out first where there is no room, in this order; then the others, from the right."""


class KeyBar(Footer):
    """Textual's footer without the keys that do not fit, in place of a line that is cut."""

    def compose(self) -> ComposeResult:
        """The keys of the focused widget, the screen and the app."""
        keys = list(super().compose())
        left_out = self._left_out([key for key in keys if isinstance(key, FooterKey)])
        yield from (key for key in keys if key not in left_out)

    def on_resize(self, event: Resize) -> None:  # noqa: ARG002 the handler's signature
        """More keys fit, or fewer."""
        self.call_after_refresh(self.recompose)

    def _left_out(self, keys: list[FooterKey]) -> list[Widget]:
        room = self.content_size.width
        if not room:
            return []
        rank = {action: place for place, action in enumerate(FIRST_TO_GO)}
        going = sorted(
            (key for key in keys if key.action not in ALWAYS),
            key=lambda key: (rank.get(key.action, len(rank)), -keys.index(key)),
        )
        taken = sum(_cells(key) for key in keys)
        left_out: list[Widget] = []
        while going and taken - 1 > room:  # nothing stands behind the last one
            left_out.append(going.pop(0))
            taken -= _cells(left_out[-1])  # type: ignore[arg-type]
        return left_out


def _cells(key: FooterKey) -> int:
    """The cells of a key, its name, and the space behind it."""
    return cell_len(f"{key.key_display} {key.description} ")
