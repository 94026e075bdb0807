"""Several replies to one prompt next to each other, also while they are written; the user picks one."""

from dataclasses import replace
from math import ceil
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Grid, Vertical
from textual.content import Content
from textual.style import Style
from textual.widgets import Static

from specchat.app.chat.conversation import Conversation, Prompt
from specchat.app.chat.reply import Reply
from specchat.app.chat.reply_stage import Stage
from specchat.app.chat.request_manager import RequestManager
from specchat.app.ui.keys import registered
from specchat.app.ui.pump import Pace
from specchat.app.ui.rendering.figures import accepted_share
from specchat.app.ui.rendering.token_lines import REJECTED_SHOWN
from specchat.app.ui.screens.dialogs import SubScreen
from specchat.app.ui.textual_internals import use_narrow_compositor
from specchat.app.ui.widgets.bars import NoticeLine
from specchat.app.ui.widgets.key_bar import KeyBar
from specchat.app.ui.widgets.transcript import Transcript

MIN_HEIGHT = 9
"""Minimum lines of a frame; with less room the grid scrolls."""


class CandidateFrame(Vertical):
    """The tokens of one reply, without its prompt. The frame has its number and figures; a click on it picks it."""

    BINDINGS: ClassVar[list[BindingType]] = registered("candidate", Binding("enter", "pick", "continue with this one"))

    def __init__(self, prompt: Prompt, place: int, pace: Pace) -> None:
        """Make it.

        Args:
            prompt: The prompt and its replies.
            place: Index of this reply among them.
            pace: Says how often the screen is drawn.
        """
        super().__init__(classes="candidate")
        self.place = place
        self.view = Transcript(Conversation(), lambda _: [] if self.reply is None else [self.reply])
        self.view.pace, self.view.forkable = pace, False
        self._prompt = prompt
        self._shown: tuple[str | Content, str | Content] = ("", "")
        self._updates = 0
        """Since figures were taken last."""

    @property
    def reply(self) -> Reply | None:
        """The reply, once it has been asked for."""
        return self._prompt.replies[self.place] if self.place < len(self._prompt.replies) else None

    def compose(self) -> ComposeResult:
        """The tokens."""
        yield self.view

    async def action_pick(self) -> None:
        """Continue with this reply."""
        await self.run_action(f"screen.pick({self.place})")

    def update(self) -> None:
        """Draw what has changed in the reply."""
        self._updates += 1
        if self._updates >= self.view.pace.figures_every // self.view.pace.turns:
            self._updates = 0
            if self.reply is not None:
                self.reply.take_figures()
            if (shown := self._title()) != self._shown:
                self._shown = shown
                self.border_title, self.border_subtitle = shown
        self.view.update()
        self.set_class(self.reply is not None and self.reply is self._prompt.reply, "-chosen")

    def _title(self) -> tuple[str | Content, str | Content]:
        reply, number = self.reply, self.place + 1
        if reply is None:
            return f" {number} ", "queued" if self._prompt.reply is None else ""
        metrics = reply.figures.metrics
        accepted = f"· {accepted_share(metrics)} " if metrics.tested else ""
        if reply.stage is Stage.WAITING:
            accepted = "· waits for a free slot "
        if len(self._prompt.replies) < 2:  # it failed before it began
            return f" {number} ", ""
        link = Style.from_meta({"@click": f"screen.pick({self.place})"})
        title = Content.assemble(" ", (f"{number}", "bold"), f" {accepted}")
        return title, Content.styled(f" continue with {number} ", link)


class CandidatesScreen(SubScreen[int | None]):
    """Returns the index of the picked reply, or None: then the conversation continues with the first one.

    Args:
        prompt: The prompt and its replies.
        requests: Stops the replies.
        slots: Maximum number of concurrent replies.
        pace: The rate at which `update` is called.
    """

    BINDINGS = registered(
        "candidates",
        Binding("escape", "dismiss", "back", key_display="esc"),
        Binding("1", "pick(0)", "pick"),
        *(Binding(str(place + 1), f"pick({place})", show=False) for place in range(1, 8)),
        Binding("left", "app.focus_previous", "Previous", show=False),
        Binding("right", "app.focus_next", "Next", show=False),
        Binding("ctrl+r,f4", "rejected", "rejected", key_display="^r"),
        Binding("ctrl+x", "stop", "stop all", key_display="^x"),
    )

    @property
    def active_bindings(self) -> Any:
        """Textual's; the key that picks is shown with the number of replies."""
        return {
            key: active._replace(binding=replace(active.binding, key_display=f"1–{len(self._frames)}"))
            if active.binding.action == "pick(0)"
            else active
            for key, active in super().active_bindings.items()
        }

    def __init__(self, prompt: Prompt, requests: RequestManager, slots: int, pace: Pace) -> None:
        super().__init__()
        use_narrow_compositor(self)
        self.prompt, self._requests, self._slots = prompt, requests, slots
        count = max(prompt.wanted, len(prompt.replies))
        self._frames = [CandidateFrame(prompt, place, pace) for place in range(count)]
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
        """Focus the reply that the conversation continues with."""
        self._frames[self.prompt.reply.place - 1 if self.prompt.reply else 0].view.focus()
        self._arrange()
        self.update()

    def update(self) -> None:
        """Draw changes in the replies; called with every frame.

        With many frames per second each reply is drawn in every other frame, which costs a fifth less. Neighbouring
        replies are drawn together, because Textual redraws everything between two changes.
        """
        self._updates += 1
        each = ceil(len(self._frames) / self._pace.turns)
        first = self._updates % self._pace.turns * each
        for frame in self._frames[first : first + each]:
            frame.update()

    def action_pick(self, place: int) -> None:
        """Return this reply."""
        if len(self.prompt.replies) > 1 and place < len(self.prompt.replies):
            self.dismiss(place)

    def action_rejected(self) -> None:
        """Fold, show or hide rejected and discarded tokens."""
        shown = [frame.view.next_rejected() for frame in self._frames]
        self.notify(REJECTED_SHOWN[shown[0]])

    def action_stop(self) -> None:
        """Stop all replies."""
        self._requests.running.cancel(self.prompt.replies)

    def _arrange(self) -> None:
        grid = self.query_one("#candidates", Grid)
        width, height = grid.size
        if not width:
            return
        count = len(self._frames)
        columns = min(_columns(count, width), count)
        rows = ceil(count / columns)
        grid.styles.grid_size_columns = columns
        grid.styles.grid_rows = str(max(height // rows, MIN_HEIGHT))
        waits = count - self._slots
        note = f"  {count} replies · {self._slots} at once, {waits} wait for a free slot" if waits > 0 else ""
        prompt = Content(" ".join(self.prompt.text.split()))
        prompt = prompt.truncate(max(width - len(note) - 4, 8), ellipsis=True)
        self.query_one("#candidates-prompt", Static).update(Content.assemble(prompt, (note, "$quiet")))

    on_resize = _arrange


def _columns(count: int, width: int) -> int:
    """Number of columns: four and more replies have two rows, three fit into one row from 120 cells."""
    if width < 60:
        return 1
    if count == 3:
        return 3 if width >= 120 else 2
    return 2 if width < 100 or count <= 4 else 3 if count <= 6 else 4
