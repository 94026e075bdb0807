"""The widgets of the chat screen: their layout, the state of the engine that they show, and the panes."""

from collections.abc import Callable

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.events import ScreenResume
from textual.geometry import Size
from textual.screen import Screen

from specchat.app.chat.conversation import Conversation
from specchat.app.chat.delivery import Marks
from specchat.app.chat.reply import Reply
from specchat.app.chat.request_manager import RequestManager
from specchat.app.settings.settings import SHOW
from specchat.app.sources.player import Player
from specchat.app.storage.store import Chat
from specchat.app.ui.pump import Pace
from specchat.app.ui.textual_internals import use_narrow_compositor
from specchat.app.ui.widgets.bars import NoticeLine, PaneTabs, ReplayBar, StepBar, TooSmall
from specchat.app.ui.widgets.chat_list import ChatList
from specchat.app.ui.widgets.composer import Composer
from specchat.app.ui.widgets.inspector import Inspector
from specchat.app.ui.widgets.key_bar import KeyBar
from specchat.app.ui.widgets.masthead import Masthead, Welcome
from specchat.app.ui.widgets.panel import Panel
from specchat.app.ui.widgets.prompt_frame import Chips, CommandHint, PromptFrame
from specchat.app.ui.widgets.timeline import Timeline
from specchat.app.ui.widgets.transcript import Transcript
from specchat.engine import Loading, Ready, Sampling, gamma_text

PANES = ("chat", "chats", "panel", "rounds")


class ChatLayout:
    """All widgets of a chat, or of a replay where there is a player."""

    def __init__(self, player: Player | None) -> None:
        self.replaying = player is not None
        self.masthead = Masthead(id="masthead")
        self.masthead.program += " replay" * self.replaying
        self.tabs = PaneTabs(PANES, "chat", id="tabs")
        self.chats = ChatList(id="chats")
        self.welcome = Welcome(id="welcome")
        self.welcome.offering = not self.replaying
        self.transcript = Transcript(Conversation(), id="transcript")
        self.timeline = Timeline(id="timeline")
        self.step_bar = StepBar(id="steps")
        self.frame = PromptFrame(player.name if player else None, id="ask")
        self.hint = CommandHint(id="hint")
        self.chips = Chips(id="chips")
        self.composer = Composer(id="composer")
        self.replay_bar = ReplayBar(player, id="replay")
        self.panel = Panel(id="panel")
        self.inspector = Inspector(replaying=self.replaying, id="inspector")
        self.no_reply = Reply()
        """Shown while the conversation has no reply: it names drafter and γ."""
        self.show_empty(empty=True)

    def show_empty(self, *, empty: bool) -> None:
        """Show the welcome if the conversation is empty, otherwise transcript and timeline.

        Changes the widgets' own styles: a class of the screen would restyle every widget.
        """
        self.empty = empty
        """Whether the welcome is shown."""
        for widget, shown in ((self.welcome, empty), (self.transcript, not empty), (self.timeline, not empty)):
            widget.styles.display = None if shown else "none"  # None: from the style sheets

    def compose(self) -> ComposeResult:
        """Top to bottom, left to right."""
        yield self.masthead
        yield self.tabs
        with Horizontal(id="body"):
            yield self.chats
            with Vertical(id="middle"):
                yield self.welcome
                yield self.transcript
                yield self.timeline
                yield self.step_bar
                with self.frame:
                    yield self.hint
                    yield self.chips
                    yield self.replay_bar if self.replaying else self.composer
            yield self.panel
            yield self.inspector
        yield NoticeLine()
        yield KeyBar()
        yield TooSmall(id="too-small")

    def show_frame(self) -> None:
        """Update the frame of the composer for the conversation on screen."""
        self.frame.show(self.transcript.conversation)

    def show_chats(self, chats: list[Chat], marks: Marks, now: float) -> None:
        """Show the list of chats; on a narrow screen its tab has a mark if a chat has an unread answer."""
        opened = self.transcript.conversation.chat
        self.chats.show(chats, opened, marks, now)
        self.tabs.mark(marks.without(opened.id) if opened else marks)
        self.show_frame()

    def show_loading(self, state: Loading | str, *, failed: bool = False) -> None:
        """Show the progress of loading, or how it ended."""
        self.frame.show_loading(state, failed=failed)
        self.welcome.show(state, failed=failed)
        self.show_frame()

    def show_models(self, target: str, drafter: str, gamma: int | None, sampling: Sampling) -> None:
        """Show target, drafter, γ and sampling in the header."""
        self.no_reply.drafter, self.no_reply.gamma = drafter, gamma_text(gamma)
        self.masthead.show_models(target, drafter, gamma, sampling)

    def show_machine(self, ready: Ready | None, model: str = "") -> None:
        """Show where the models run, and the target as replies name it; None if no model is loaded."""
        self.masthead.show_machine(ready)
        self.panel.show_machine(ready, model)


class Panes:
    """Chats, panel and timeline: next to the conversation if the screen is wide enough, otherwise tabs.

    Args:
        screen: Has a class for each state; its style sheet shows and hides the panes.
        widgets: Widgets of the screen.
    """

    def __init__(self, screen: Screen[None], widgets: ChatLayout) -> None:
        self._screen = screen
        self._tabs, self._chats, self._timeline = widgets.tabs, widgets.chats, widgets.timeline
        self._transcript = widgets.transcript
        self._home = widgets.transcript if widgets.replaying else widgets.composer

    @property
    def elsewhere(self) -> bool:
        """Whether the conversation is hidden, or the list of chats has the focus."""
        return not self._screen.has_class("-pane-chat") or self._chats.has_focus

    def select(self, pane: str) -> None:
        """Show this pane on a narrow screen; the focus stays, unless the focused widget was hidden."""
        for name in PANES:
            self._screen.set_class(name == pane, f"-pane-{name}")
        self._tabs.show(pane)
        if pane == "chat" and self._screen.focused is None:
            self.go_home()

    def show(self, pane: str) -> None:
        """Show and focus this pane."""
        self.select(pane)
        {"chats": self._chats, "rounds": self._timeline}.get(pane, self._home).focus()

    def toggle_chats(self) -> None:
        """Show and focus the chats; if they have the focus, fold them."""
        screen, there = self._screen, self._chats.has_focus
        if screen.has_class("-narrow"):
            self.show("chat" if screen.has_class("-pane-chats") else "chats")
            return
        medium = screen.has_class("-medium")
        screen.set_class(medium and not there, "-with-chats")
        screen.set_class(not medium and there, "-no-chats")
        if there:
            self.go_home()
        else:
            self._chats.focus()

    def toggle_timeline(self) -> None:
        """Show and focus the timeline; if it has the focus, return to the tokens."""
        there = self._timeline.has_focus
        self.select("chat" if there else "rounds")
        (self._transcript if there else self._timeline).focus()

    def go_home(self) -> None:
        """Focus the composer; in a replay, the transcript."""
        self._home.focus()


class ChatBase(Screen[None]):
    """A screen with the widgets of a chat, and what their parts share.

    Textual would focus the first widget when a dialog closes and the composer is hidden: the list of chats, hidden too.

    Args:
        requests: Sends prompts and stops replies.
        redraw: Processes new records, and draws.
        player: Plays a trace; None in a chat.
    """

    AUTO_FOCUS = ""

    def __init__(self, requests: RequestManager, redraw: Callable[[], None], player: Player | None) -> None:
        # Classes are set before mounting, so that the first frame is styled only once.
        super().__init__(classes="-pane-chat " + ("-replay" if player else "-chat"))
        use_narrow_compositor(self)
        self._styled = False
        """Whether the screen was shown before."""
        self.pace = Pace()
        self.redraw = redraw
        """Processes new records, and calls `update`."""
        self.requests = requests
        self.widgets = ChatLayout(player)
        self.transcript = self.widgets.transcript
        if player:  # a replay shows its drafts
            self.transcript.set_reactive(Transcript.rejected, SHOW)
            self.transcript.forkable = False
        self.panes = Panes(self, self.widgets)

    def fit(self, size: Size) -> None:
        """Set the classes for a terminal of this size, so that the first layout changes none."""
        for limits, length in ((self.HORIZONTAL_BREAKPOINTS, size.width), (self.VERTICAL_BREAKPOINTS, size.height)):
            self.add_class(*[name for least, name in limits or () if length >= least][-1:], update=False)

    def on_screen_resume(self, event: ScreenResume) -> None:
        """Do not style all widgets again when they are first shown: mounting has just done it."""
        event.refresh_styles, self._styled = event.refresh_styles and self._styled, True

    def on_descendant_blur(self) -> None:
        """Focus the composer if what had the focus is hidden now, as in a terminal that was made narrower."""
        if self.focused is None and self.app.app_focus and not self.panes.elsewhere:
            self.panes.go_home()

    @property
    def conversation(self) -> Conversation:
        """The conversation that is shown."""
        return self.transcript.conversation
