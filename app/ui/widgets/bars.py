"""Status lines: notices, tabs, the position of a replay, a paused round, and the message for a small terminal."""

from collections.abc import Callable, Sequence
from typing import Any

from textual.content import Content
from textual.events import Click
from textual.geometry import Size
from textual.notifications import Notification
from textual.style import Style
from textual.timer import Timer
from textual.widgets import Static

from specchat.app.chat.delivery import Marks
from specchat.app.sanitize import escape_controls
from specchat.app.sources.player import Player
from specchat.app.sources.source import Part
from specchat.app.ui.rendering.figures import became, clock_time, counted, meter
from specchat.app.ui.rendering.verdict import chance_of, number, shown
from specchat.engine import Round

SIGNS = {"information": "· ", "warning": "▲ ", "error": "✗ "}


class NoticeLine(Static):
    """Shows the newest notice until it expires, and takes no room without one. A click takes it away."""

    ALLOW_SELECT = False

    def __init__(self, **options: Any) -> None:
        super().__init__("", **options)
        self.display = False
        self._end: Timer | None = None

    def show(self, notice: Notification) -> None:
        """Show this notice instead of the previous one."""
        self.update(SIGNS[notice.severity] + notice.message)
        for severity in SIGNS:
            self.set_class(severity == notice.severity, f"-{severity}")
        self.display = True
        if self._end is not None:
            self._end.stop()
        self._end = self.set_timer(notice.timeout, self.clear)

    def clear(self) -> None:
        """Show nothing."""
        self.display = False

    on_click = clear


class PaneTabs(Static):
    """Names of panes. A click on one runs the screen's action `tab` with it."""

    def __init__(self, panes: Sequence[str], first: str, **options: Any) -> None:
        super().__init__(**options)
        self._panes, self._shown = panes, first
        self._sign = ""

    def on_mount(self) -> None:
        """Show the first pane as selected."""
        self.show(self._shown)

    def mark(self, marks: Marks) -> None:
        """Show the most urgent sign of all chats on their tab."""
        sign = "◆" if marks.news else "●" if marks.answering else ""
        if sign != self._sign:
            self._sign = sign
            self.show(self._shown)

    def show(self, pane: str) -> None:
        """Mark the pane that is shown."""
        self._shown = pane
        signs = {"chats": self._sign}  # instead of a space, so that no name moves
        tabs = [
            Content(f"{signs.get(name) or ' '}{name} ")
            .stylize("reverse bold" if name == pane else "$quiet")
            .stylize(Style.from_meta({"@click": f"screen.tab('{name}')"}))
            for name in self._panes
        ]
        self.update(Content(" ").join(tabs))


LEAST = (48, 12)
"""Columns and lines, as the breakpoints of the screens have them."""


class TooSmall(Static):
    """The required and the current size of the terminal."""

    _shown = Size()

    def on_mount(self) -> None:
        """Subscribe to layouts: a widget of two lines gets no event for a change of the terminal's height."""
        self.screen.screen_layout_refresh_signal.subscribe(self, lambda _: self._show())

    def _show(self) -> None:
        size = self.app.size
        if size != self._shown and (size.width < LEAST[0] or size.height < LEAST[1]):
            self._shown = size
            columns, lines = size
            if self.screen.focused is None:  # the focused widget is hidden now
                self.call_after_refresh(self.screen.focus_next)
            self.update(f"needs {LEAST[0]} × {LEAST[1]} cells\nthis has {columns} × {lines}")


class ReplayBar(Static):
    """A line with the position in a trace; a click seeks."""

    ALLOW_SELECT = False
    _shown = Content("")
    _span = (0, 0)
    """First cell and length of the progress bar."""

    seek: Callable[[float], None]
    """Called with a time of the trace."""

    def __init__(self, player: Player | None, **options: Any) -> None:
        super().__init__(**options)
        self._player = player

    def on_click(self, event: Click) -> None:
        """Seek to the time below the pointer."""
        player, (left, width) = self._player, self._span
        if player is not None and left <= event.x < left + width:
            self.seek((event.x - left) / max(width - 1, 1) * player.duration)

    def follow(self) -> None:
        """Show the position of the player."""
        if self._player is not None and not (line := self._line(self._player)).is_same(self._shown):
            self._shown = line
            self.update(line, layout=False)

    on_resize = follow

    def _line(self, player: Player) -> Content:
        """The line at the current width."""
        sign = "■" if player.ended else "‖" if player.paused else "▶"
        left = f"{sign} {clock_time(player.position, player.duration)} "
        right = f" {clock_time(player.duration, player.duration)}  ×{player.speed:g}"
        share = player.position / player.duration if player.duration else 1.0
        width = max(self.size.width - len(left) - len(right), 0)
        self._span = (len(left), width)
        full, empty = meter(share, width)
        return Content.assemble(left, (full, "$primary"), (empty, "$border"), (right, "$quiet"))


Steps = Sequence[tuple[Round, Part]]


class StepBar(Static):
    """One sentence on the part of the round that is shown."""

    ALLOW_SELECT = False
    _shown = Content("")

    def show(self, steps: Steps, last: Round | None, number: int, *, ended: bool) -> None:
        """Show these parts of rounds, or the `last` round of a reply that has not ended, and its number from 1."""
        head = f"round {number}" if steps or last is not None else "paused"
        more = f" · {len(steps)} lanes" if len(steps) > 1 else ""
        if steps:
            sentence = Content(_sentence(*steps[0]))
        elif last is not None:
            sentence = Content(_ending(last))
        else:
            waits = "this reply has ended: the next one" if ended else "the next round"
            sentence = Content.styled(f"{waits} waits until you step (s) or resume (p)", "$quiet")
        line = Content.assemble(("‖ ", "bold $warning"), (f"{head}{more}  ", "bold $foreground"), sentence)
        if not line.is_same(self._shown):
            self._shown = line
            self.update(line, layout=False)


def _sentence(record: Round, part: Part) -> str:
    drafted = len(record.drafted)
    if part is Part.DRAFTED and record.observed:
        return f"{counted(drafted, 'token')} drafted; one pass of the target verifies them all"
    if part is Part.DRAFTED:
        tokens = counted(drafted, "token")
        if record.offered:
            tokens = f"{counted(record.offered, 'token')} for {counted(record.steps, 'position')}, among them"
        names = " ".join(f"“{shown(piece)}”" for piece in record.pieces)
        proposed = f"{tokens} {names}" if record.offered else f"{tokens}: {names}"
        return f"{escape_controls(record.drafter)} proposes {proposed}; one pass of the target verifies them all"
    if record.accepted == record.tested:
        fates = became(record) if record.wasted else f"all {record.accepted} accepted"
        return f"{fates}; the same pass gives one more token"
    if record.observed:
        return f"{record.accepted or 'none'} of {drafted} accepted; the server reports no more of the others"
    p, q, u = record.p[record.accepted], record.q[record.accepted], record.u[record.accepted]
    why = f"u {number(u)} ≥ {number(chance_of(p, q))}"
    others = len(record.refused[record.accepted]) if record.refused else 0
    more = f" and {counted(others, 'more candidate')}" if others else ""
    discarded = f", the other {record.discarded} discarded" if record.discarded else ""
    rejected = f"“{shown(record.pieces[record.accepted])}” rejected ({why}){more}"
    return f"{record.accepted or 'none'} accepted; {rejected}{discarded}"


def _ending(record: Round) -> str:
    if record.last_fate is None:
        return "the reply ended inside the accepted tokens"
    fate = record.last_fate.value
    return f"the target adds “{shown(record.last_piece)}”{_ADDED.get(fate, f', the {fate}')}"


_ADDED = {"plain": ", the only token of a round without a draft", "unknown": ""}
