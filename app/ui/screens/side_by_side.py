"""The side-by-side screen: the same prompt in two setups, each with its own clock."""

from collections.abc import Iterator
from functools import partial

from textual.app import ComposeResult, SystemCommand
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.content import Content

from specchat.app.chat.archive import Archive
from specchat.app.chat.attachments import content_of
from specchat.app.chat.conversation import Conversation
from specchat.app.sanitize import escape_controls
from specchat.app.settings.settings import NO_CHAT
from specchat.app.side_by_side.duet import SIDES, Duet
from specchat.app.ui import slash
from specchat.app.ui.keys import registered
from specchat.app.ui.pump import Pump
from specchat.app.ui.rendering.token_lines import REJECTED_SHOWN
from specchat.app.ui.screens.dialogs import SubScreen
from specchat.app.ui.screens.help import side_help
from specchat.app.ui.textual_internals import use_narrow_compositor
from specchat.app.ui.widgets.bars import NoticeLine, PaneTabs, TooSmall
from specchat.app.ui.widgets.composer import Composer
from specchat.app.ui.widgets.key_bar import KeyBar
from specchat.app.ui.widgets.masthead import Masthead
from specchat.app.ui.widgets.prompt_frame import ENGINE_STOPPED, STOPPING, loading_text
from specchat.app.ui.widgets.side_summary import LaneColumn, SideSummary, order_text, verdict
from specchat.engine import Died, Loading, Notice, Ready, Record

PANES = ("left", "right", "summary")
NO_COMMANDS = "commands work in the chat (esc leaves): begin with // to send a text that starts with a slash"


class SideScreen(SubScreen[Conversation | None]):
    """Both lanes of a duet. Returns the conversation to continue, or None."""

    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (48, "-narrow"), (100, "-medium"), (128, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (12, "-low"), (30, "-tall")]  # noqa: RUF012
    BINDINGS = registered(
        "side-by-side",
        Binding("escape", "stop", "stop", key_display="esc"),
        Binding("escape", "dismiss", "leave", key_display="esc"),
        Binding("f3", "again", "again"),
        Binding("f8", "continue_reply(0)", "continue left", id="side-by-side.go-on-left"),
        Binding("f9", "continue_reply(1)", "continue right", id="side-by-side.go-on-right"),
        Binding("ctrl+b,f2", "next_pane", "lane", key_display="^b"),
        Binding("f1,question_mark", "how", "clocks", key_display="f1"),
        Binding("ctrl+r,f4", "rejected", "rejected", key_display="^r"),
        Binding("ctrl+t,f5", "markdown", "markdown", key_display="^t"),
    )

    def __init__(self, duet: Duet, archive: Archive) -> None:
        super().__init__(classes="-side-right")
        use_narrow_compositor(self)
        self.duet, self._archive = duet, archive
        self.pump = Pump(self, duet.drain, lambda: duet.stage, self._handle, self._draw)
        self.columns = (LaneColumn(duet, 0, id="left"), LaneColumn(duet, 1, id="right"))
        for column in self.columns:
            column.transcript.pace = self.pump.pace
        self._masthead = Masthead(id="masthead")
        self._masthead.program = "specchat side by side"
        self._tabs = PaneTabs(PANES, "right", id="side-tabs")
        self._summary = SideSummary(id="summary")
        self.composer = Composer(id="composer")
        self._frame = Vertical(id="ask")
        self._state: Loading | str = Loading("import", "starting", None, 0.0)
        self._failed = False
        self._summarised: object = None
        self._told: set[str] = set()

    def compose(self) -> ComposeResult:
        """Top to bottom, left to right."""
        yield self._masthead
        yield self._tabs
        with Vertical(id="side"):
            with Horizontal(id="lanes"):
                yield from self.columns
            yield self._summary
            with self._frame:
                yield self.composer
        yield NoticeLine()
        yield KeyBar()
        yield TooSmall(id="too-small")

    def on_mount(self) -> None:
        """Start the engine, and process its records."""
        schema = escape_controls(self.duet.conversations[0].constraint_name)
        self._frame.border_title = Content("one prompt, both lanes" + (f" · schema: {schema}" if schema else ""))
        self.composer.focus()
        self.duet.connect(self._archive)
        self.pump.start()
        self._show_state()

    def on_resize(self) -> None:
        """Draw the summary again, for the new width."""
        self._summarised = None

    def on_composer_sent(self, event: Composer.Sent) -> None:
        """Send the prompt to both lanes."""
        event.stop()
        if slash.is_command(event.text):
            self.composer.take_back([event.text])
            self.notify(NO_COMMANDS, severity="warning")
            return
        self.duet.send(content_of(slash.unescaped(event.text), event.attachments))
        self.composer.tray.hold(())
        self.composer.offering = False
        for column in self.columns:
            column.transcript.follow()
        self.pump.run()

    def on_composer_help_requested(self, event: Composer.HelpRequested) -> None:
        """A question mark in an empty composer: this screen's own help."""
        event.stop()
        self.action_how()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        """Escape stops replies, otherwise leaves; a lane can be continued once it has answered."""
        busy = bool(self.duet.running or self.duet.waiting)
        done, narrow = self.duet.done and not busy, self.has_class("-narrow")
        available = {"stop": busy, "dismiss": not busy, "continue_reply": done, "again": done, "next_pane": narrow}
        return available.get(action, True)

    def commands(self) -> Iterator[SystemCommand]:
        """This screen's entries of the command palette."""
        if self.check_action("continue_reply", ()):
            for side, name in enumerate(SIDES):
                about = "Back to the chat with this lane's conversation"
                yield SystemCommand(f"Continue from the {name}", about, partial(self.action_continue_reply, side))
        if self.check_action("stop", ()):
            yield SystemCommand("Stop", "Stop both replies and keep their texts", self.action_stop)
        else:
            yield SystemCommand("Leave", "Back to the chat; both replies are stored, in one chat", self.dismiss)
        yield SystemCommand("Rejected tokens", "Folded, in place, or hidden", self.action_rejected)
        yield SystemCommand("Markdown", "Replies as Markdown, also while written, or tokens", self.action_markdown)
        yield SystemCommand("Help", "Keys, and how the clocks count", self.action_how)

    def action_stop(self) -> None:
        """Stop both replies, and put waiting prompts back into the composer."""
        if taken := self.duet.stop():
            self.composer.take_back([slash.escaped(prompt) for prompt in taken])

    def action_again(self) -> None:
        """Send the same prompt again to both lanes."""
        self.duet.regenerate()
        self.pump.run()

    def action_continue_reply(self, side: int) -> None:
        """Return to the chat with this lane's conversation."""
        self.dismiss(self.duet.conversations[side])

    def action_how(self) -> None:
        """Keys, and how the clocks count."""
        self.app.push_screen(side_help())

    def action_next_pane(self) -> None:
        """Show the next of left, right, summary on a narrow screen."""
        shown = next(pane for pane in PANES if self.has_class(f"-side-{pane}"))
        self.action_tab(PANES[(PANES.index(shown) + 1) % len(PANES)])

    def action_tab(self, pane: str) -> None:
        """A click on a pane's name."""
        for name in PANES:
            self.set_class(name == pane, f"-side-{name}")
        self._tabs.show(pane)

    def action_rejected(self) -> None:
        """Fold, show or hide rejected and discarded tokens."""
        shown = [column.transcript.next_rejected() for column in self.columns]
        self.notify(REJECTED_SHOWN[shown[0]])

    def action_markdown(self) -> None:
        """Finished replies as Markdown, or token by token."""
        for column in self.columns:
            column.transcript.markdown = not column.transcript.markdown

    def action_scroll(self, pages: int) -> None:
        """Scroll both lanes by most of their height."""
        for column in self.columns:
            column.transcript.scroll_relative(y=pages * max(column.transcript.size.height - 2, 1), animate=False)

    def _handle(self, record: Record) -> None:
        """Process a record that belongs to no reply."""
        match record:
            case Loading():
                self._state = record
            case Ready(conversations=False):
                self._fail(NO_CHAT.format(record.target))
            case Ready():
                self._masthead.show_machine(record)
                self.pump.suit(record.device)
                self._state = ""
                self.duet.ready()
                self._show_targets()
                for column in self.columns:
                    column.show_set_up()
            case Notice(text=text) if text not in self._told:
                self._told.add(text)
                self.notify(text)
            case Died(message=message):
                self._fail(message)

    def _fail(self, sentence: str) -> None:
        """There is no engine, for this reason."""
        self._state, self._failed = sentence, True
        self.duet.fail(sentence)
        self.notify(sentence, severity="error")

    def _draw(self) -> None:
        """Draw changes in the lanes."""
        for column in self.columns:
            column.update()
        self._show_state()
        self._show_summary()

    def _show_state(self) -> None:
        """Show in the composer's frame how the clocks count, or what the lanes wait for."""
        if self._failed:
            state = ENGINE_STOPPED
        elif self.duet.stopping:
            state = STOPPING
        elif isinstance(self._state, Loading):
            state = loading_text(self._state)
        elif self.duet.waiting:
            state = f"{len(self.duet.waiting)} waiting · esc stops"
        elif self.duet.done and self.has_class("-narrow"):
            state = f"{verdict(self.duet.comparison, comparable=self.duet.comparable)} · ^b summary"
        else:
            state = order_text(self.duet.order, observed=self.duet.server is not None)
        if self._frame.border_subtitle != state:
            self._frame.border_subtitle = state

    def _show_targets(self) -> None:
        names = dict.fromkeys(lane.ready.target for lane in self.duet.readies() if lane.ready.target)
        exact = [lane.exact for lane in self.duet.readies()]
        note = "" if None in exact else "exact" if all(exact) else "not exact here"
        self._masthead.show_targets(" | ".join(names), self.duet.lanes[0].settings.sampling(), note)

    def _show_summary(self) -> None:
        done = self.duet.done
        turns = len(self.duet.conversations[0].prompts)
        state = (done, self.duet.gap, turns, len(self.duet.runs), self.size.width)
        if state == self._summarised:
            return
        self._summarised = state
        self.set_class(done or not turns, "-done")
        if done:
            self._summary.show(self.duet)
        elif not turns:
            self._summary.explain(self.duet)
        self.refresh_bindings()
