"""The timeline of rounds, one lane per reply: fates of the drafted tokens, and times of the parts of a round."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.cells import set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Click, MouseScrollDown, MouseScrollUp
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from specchat.app.chat.reply import Reply
from specchat.app.sanitize import escape_controls
from specchat.app.ui.keys import registered
from specchat.app.ui.rendering import timeline
from specchat.app.ui.rendering.figures import cut
from specchat.app.ui.rendering.styles import TOKEN_CLASSES

LINES = 2
"""Lines of a lane: the fates of the tokens, and the times."""
MOST_LANES = 4
"""Maximum number of visible lanes on a screen of usual height."""
SHARE, SHARE_ALONE = 6, 2
"""The timeline may have a sixth of the screen's height, and half of it on its own page."""
NARROW = 70
"""Cells below which names are short."""
WHEEL = 8
"""Columns that the mouse wheel scrolls at once."""
NAME, SHORT_NAME = 12, 8
"""Cells for the name of a lane, and on a narrow screen."""


class Timeline(ScrollView, can_focus=True):
    """Timeline: lanes of rounds, in several rows where there is room, otherwise scrolled sideways.

    Follows the newest round until the user picks one or scrolls away.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = TOKEN_CLASSES | {f"timeline--{part}" for part in timeline.PARTS}
    BINDINGS: ClassVar[list[BindingType]] = registered(
        "timeline",
        Binding("left", "pick(-1)", "previous round", show=False),
        Binding("right", "pick(1)", "next round", show=False),
        Binding("up", "lane(-1)", "lane above", show=False),
        Binding("down", "lane(1)", "lane below", show=False),
        Binding("home", "pick_end(0)", "first round", show=False),
        Binding("end", "pick_end(-1)", "last round", show=False),
        Binding("z", "zoom(-1)", "longer bars", show=False),
        Binding("Z,shift+z", "zoom(1)", "shorter bars", show=False),
    )
    ALLOW_SELECT = False

    @dataclass
    class Picked(Message):
        """The user picked a round, by its index in the reply."""

        reply: Reply
        index: int

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._lanes = timeline.TimelineLayout([])
        self._names: list[str] = []
        self._own: int | None = None
        self._zoom: int | None = None
        """The scale that the user chose."""
        self._picked: tuple[int, int] | None = None
        """Lane and index of the selected round."""
        self._following = True
        self._rows: list[int] = []
        """First columns of the rows; empty where there is room for one, which scrolls."""
        self._styles: dict[str, Style] = {}
        """Resolved when first needed, for one theme."""
        self._titles: tuple[Content | str, str] = ("", "")
        self.border_title = "rounds"

    def show(self, replies: Sequence[Reply], names: Sequence[str] = (), own: int | None = None) -> None:
        """Show the lanes of these replies; called again when they have grown.

        Args:
            replies: the lanes, top to bottom.
            names: what each is called, where there are several.
            own: how many of them, from the first on, are of the chat that is shown; all by default.
        """
        self._names = [escape_controls(name) for name in names]
        counts, before = [len(reply.rounds) for reply in replies], self._lanes.counts
        if replies == self._lanes.replies and counts == before:
            return
        self._own = own
        if replies != self._lanes.replies or sum(counts) < sum(before):  # a server reports fewer
            self._picked, self._following, self._zoom = None, True, None
        self._lanes = timeline.TimelineLayout(replies, self._zoom, own)
        self._resize()
        self.refresh(self.size.region)

    def pick(self, reply: Reply | None, index: int = 0) -> None:
        """Select a round and scroll to it; None selects none, and the newest is followed again."""
        lane = next((i for i, each in enumerate(self._lanes.replies) if each is reply), None)
        if lane is None or index >= self._lanes.count(lane):
            self._picked, self._following = None, reply is None or self._following
            self._resize()
        else:
            self._picked, self._following = (lane, index), False
            slot = self._lanes.slot(lane, index)
            left, room = self.scroll_offset.x, self._room
            if not self._rows and not left <= slot.left <= slot.right <= left + room:
                self._scroll(x=max(slot.left - room // 2, 0))
            top, height = self.scroll_offset.y, self.scrollable_content_region.height
            line = lane * LINES + max(bisect_right(self._rows, slot.left) - 1, 0) * self._row_lines
            if not top <= line < top + height:
                self._scroll(y=line)
        self.refresh()
        self._describe()

    def render_line(self, y: int) -> Strip:
        """One line of a lane: its name, then the visible columns."""
        row, lane, line = self._place(y)
        width = self.scrollable_content_region.width
        styles = self._styles = self._styles or timeline.timeline_styles(self)
        if lane >= len(self._lanes.replies) or row >= max(len(self._rows), 1):
            return Strip([Segment(" " * width, styles["base"])])
        left = column = self._left(row)
        right = self._rows[row + 1] - 1 if row + 1 < len(self._rows) else left + self._room
        name = self._names[lane] if line == 0 and lane < len(self._names) else ""
        segments = [Segment(set_cell_size(cut(name, self._margin - 1), self._margin), styles["lane"])]
        for index in self._lanes.visible(lane, left, right):
            slot = self._lanes.slot(lane, index)
            record = self._lanes.rounds[lane][index]
            own = list((timeline.token_signs if line == 0 else timeline.time_bar)(record, slot, styles))
            begin, end = slot.left, slot.right
            if self._picked == (lane, index):
                own = [Segment("▐", styles["picked"]), *own, Segment("▌", styles["picked"])]
                begin, end = begin - 1, end + 1
            if begin > column:
                segments += timeline.gap(begin - column, styles, late=slot.late)
            segments += Strip(own).crop(max(column - begin, 0))
            column = max(end, column)
        return Strip(segments).adjust_cell_length(width, styles["base"])

    def notify_style_update(self) -> None:
        """Another theme."""
        super().notify_style_update()
        self._styles = {}

    def watch_scroll_x(self, old_value: float, new_value: float) -> None:
        """Follow the newest round if the user scrolls to the end; stop if away from it."""
        super().watch_scroll_x(old_value, new_value)
        if self._picked is None and new_value != old_value and not self._rows:
            self._following = new_value >= self.max_scroll_x

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """The same, where there are several rows."""
        super().watch_scroll_y(old_value, new_value)
        if self._picked is None and new_value != old_value and self._rows:
            self._following = new_value >= self.max_scroll_y

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        """Scroll along the time axis."""
        self._wheel(event, WHEEL)

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        """Scroll along the time axis."""
        self._wheel(event, -WHEEL)

    def on_click(self, event: Click) -> None:
        """Pick the round under the pointer."""
        offset = event.get_content_offset(self)
        if offset is None:
            return
        row, lane, _ = self._place(offset.y)
        if lane < len(self._lanes.replies) and row < max(len(self._rows), 1):
            self._tell(lane, self._lanes.round_at(lane, offset.x - self._margin + self._left(row)))

    def action_pick(self, step: int) -> None:
        """The round before or after."""
        lane, index = self._picked or (0, self._lanes.count(0) if self._lanes.replies else 0)
        if self._lanes.replies and self._lanes.count(lane):
            self._tell(lane, min(max(index + step, 0), self._lanes.count(lane) - 1))

    def action_pick_end(self, index: int) -> None:
        """The first or the last round."""
        lane = self._picked[0] if self._picked else 0
        if self._lanes.replies and self._lanes.count(lane):
            self._tell(lane, range(self._lanes.count(lane))[index])

    def action_lane(self, step: int) -> None:
        """The round of the same time in the lane above or below."""
        if not self._lanes.replies:
            return
        lane, index = self._picked or (0, self._lanes.count(0) - 1)
        other = lane + step
        if 0 <= other < len(self._lanes.replies) and self._lanes.count(lane):
            self._tell(other, self._lanes.round_at(other, self._lanes.slot(lane, index).left))

    def action_zoom(self, step: int) -> None:
        """Longer or shorter bars."""
        if self._lanes.scale is not None:
            self._zoom = min(max(self._lanes.scale + step, 0), len(timeline.SCALES_MS) - 1)
            self._lanes = timeline.TimelineLayout(self._lanes.replies, self._zoom, self._own)
            picked = self._picked
            self._resize()
            if picked is not None:
                self.pick(self._lanes.replies[picked[0]], picked[1])
            self.refresh()

    def _wheel(self, event: MouseScrollDown | MouseScrollUp, columns: int) -> None:
        event.prevent_default()
        event.stop()
        if self._rows:
            self._scroll(y=self.scroll_offset.y + (self._row_lines if columns > 0 else -self._row_lines))
        else:
            self._scroll(x=self.scroll_offset.x + columns)

    def _tell(self, lane: int, index: int | None) -> None:
        if index is not None:
            self.post_message(self.Picked(self._lanes.replies[lane], index))

    def _place(self, y: int) -> tuple[int, int, int]:
        """Row, lane and line of the lane at a line of the widget."""
        row, line = divmod(y + self.scroll_offset.y, self._row_lines)
        return (row, *divmod(line, LINES))

    def _left(self, row: int) -> int:
        """First column of a row."""
        return self._rows[row] if self._rows else self.scroll_offset.x

    @property
    def _row_lines(self) -> int:
        """Lines of all lanes."""
        return LINES * max(len(self._lanes.replies), 1)

    @property
    def _margin(self) -> int:
        """Cells for the names of several lanes."""
        wide = self.size.width >= NARROW
        return (NAME if wide else SHORT_NAME) if len(self._lanes.replies) > 1 else 0

    @property
    def _room(self) -> int:
        return max(self.scrollable_content_region.width - self._margin, 1)

    def _scroll(self, x: int | None = None, y: int | None = None) -> None:
        self.scroll_to(x, y, animate=False, immediate=True, force=True)

    def _resize(self) -> None:
        alone = self.screen.has_class("-pane-rounds") and not self.screen.has_class("-inspect")
        free = self.app.size.height // (SHARE_ALONE if alone else SHARE)
        rows = self._lanes.rows(self._room)
        shown = min(max(free // self._row_lines, 1), len(rows))
        self._rows = rows if shown > 1 else []
        self.styles.height = 2 + min(self._row_lines * shown, max(free, LINES * MOST_LANES))
        size = Size(self._lanes.width + self._margin, self._row_lines)
        if self._rows:
            size = Size(self.container_size.width, self._row_lines * len(rows))
        self.set_reactive(Widget.virtual_size, size)  # setting it would lay the whole screen out anew
        self.set_reactive(Widget.show_horizontal_scrollbar, size.width > self.container_size.width)
        self.set_reactive(Widget.show_vertical_scrollbar, size.height > self.container_size.height)
        if self._following:
            self._scroll(x=self.max_scroll_x, y=self.max_scroll_y if self._rows else None)
        self._describe()

    on_resize = _resize

    def _describe(self) -> None:
        """Show the legend of the signs in the upper border, and the selected round or the legend of the bars below."""
        room = self.outer_size.width - 6
        legend = next((legend for legend in timeline.LEGENDS if legend.cell_length <= room), "rounds")
        titles = legend, timeline.subtitle(self._lanes, self._picked)
        if titles != self._titles:
            self._titles = titles
            self.border_title, self.border_subtitle = titles
