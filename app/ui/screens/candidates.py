"""Several replies to one prompt, side by side while they are written; the user picks one to continue with."""

from __future__ import annotations

from math import ceil
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Grid
from textual.events import Resize
from textual.screen import Screen
from textual.widgets import Static

from specchat.app.chat.request_manager import RequestManager
from specchat.app.chat.turn import Turn
from specchat.app.sanitize import escape_controls
from specchat.app.ui.keys import named
from specchat.app.ui.pump import Pace
from specchat.app.ui.rendering.token_lines import REJECTED_SHOWN
from specchat.app.ui.textual_internals import use_narrow_compositor
from specchat.app.ui.widgets.bars import NoticeLine
from specchat.app.ui.widgets.key_bar import KeyBar
from specchat.app.ui.widgets.reply_frames import CandidateFrame

LEAST_HEIGHT = 9
"""Lines of a frame; with less room the grid scrolls."""


class CandidatesScreen(Screen[int | None]):
    """Dismissed with the index of the reply that was picked, or None: then the first one goes on until one is."""

    BINDINGS: ClassVar[list[BindingType]] = named(
        "candidates",
        Binding("escape", "leave", "back", key_display="esc"),
        Binding("1", "pick(0)", "pick", key_display="1–8"),
        *(Binding(str(place + 1), f"pick({place})", show=False) for place in range(1, 8)),
        Binding("left", "app.focus_previous", "Previous", show=False),
        Binding("right", "app.focus_next", "Next", show=False),
        Binding("ctrl+r,f4", "rejected", "rejected", key_display="^r"),
        Binding("ctrl+x", "stop", "stop all", key_display="^x"),
        Binding("ctrl+s", "app.open('save_picture')", "Save the screen", show=False),
    )

    def __init__(self, turn: Turn, requests: RequestManager, slots: int, pace: Pace) -> None:
        """Make it.

        Args:
            turn: The prompt and its replies.
            requests: Stops the replies.
            slots: How many replies can be written at once.
            pace: Says how often `update` is called.
        """
        super().__init__()
        use_narrow_compositor(self)
        self.turn, self._requests, self._slots = turn, requests, slots
        self._count = max(turn.wanted, len(turn.replies))
        self._frames = [CandidateFrame(turn, place, pace) for place in range(self._count)]
        self._pace = pace
        self._updates = 0

    def compose(self) -> ComposeResult:
        """The prompt, the grid, the keys."""
        yield Static(id="candidates-prompt")
        with Grid(id="candidates"):
            yield from self._frames
        yield NoticeLine()
        yield KeyBar()

    def on_mount(self) -> None:
        """Begin with the one that goes on."""
        self._frames[self.turn.place - 1].view.focus()
        self._arrange()
        self.update()

    def on_resize(self, event: Resize) -> None:  # noqa: ARG002 the handler's signature
        """As many columns as fit."""
        self._arrange()

    def update(self) -> None:
        """Draw what has changed in the replies; called with every frame.

        Where frames are many, each reply is drawn with every other one, which reads as well and costs a fifth less.
        Replies beside each other have the same turn: Textual draws all that lies between two of them.
        """
        self._updates += 1
        each = ceil(len(self._frames) / self._pace.turns)
        first = self._updates % self._pace.turns * each
        for frame in self._frames[first : first + each]:
            frame.update()

    def action_pick(self, place: int) -> None:
        """Go on with this one."""
        if len(self.turn.replies) > 1 and place < len(self.turn.replies):
            self.dismiss(place)

    def action_leave(self) -> None:
        """Back to the chat; the replies go on."""
        self.dismiss(None)

    def action_rejected(self) -> None:
        """Fold, show or hide what is no part of the replies."""
        shown = [frame.view.next_rejected() for frame in self._frames]
        self.notify(REJECTED_SHOWN[shown[0]])

    def action_stop(self) -> None:
        """End all of them where they are."""
        self._requests.running.cancel(self.turn.replies)

    def _arrange(self) -> None:
        grid = self.query_one("#candidates", Grid)
        width, height = grid.size
        if not width:
            return
        count = len(self._frames)
        columns = min(_columns(count, width), count)
        rows = ceil(count / columns)
        grid.styles.grid_size_columns = columns
        grid.styles.grid_rows = str(max(height // rows, LEAST_HEIGHT))
        waits = count - self._slots
        aside = f"  {count} replies · {self._slots} at once, {waits} wait for a free slot" if waits > 0 else ""
        prompt = Text(" ".join(escape_controls(self.turn.prompt).split()), no_wrap=True, overflow="ellipsis")
        prompt.truncate(max(width - len(aside) - 4, 8), overflow="ellipsis")
        self.query_one("#candidates-prompt", Static).update(Text.assemble(prompt, (aside, "dim")))


def _columns(count: int, width: int) -> int:
    """Frames beside each other: three of them from 120 cells on, four in two rows, more of them in two rows."""
    if width < 60:
        return 1
    if count == 3:
        return 3 if width >= 120 else 2
    return 2 if width < 100 or count <= 4 else 3 if count <= 6 else 4
