"""The widgets of the chat screen, and where they stand."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical

from specchat.app.chat.conversation import Conversation
from specchat.app.sources.player import Player
from specchat.app.ui.screens.panes import PANES
from specchat.app.ui.widgets.bars import NoticeLine, PaneTabs, ReplayBar, TooSmall
from specchat.app.ui.widgets.chat_list import ChatList
from specchat.app.ui.widgets.composer import Composer
from specchat.app.ui.widgets.inspector import Inspector
from specchat.app.ui.widgets.key_bar import KeyBar
from specchat.app.ui.widgets.masthead import Masthead
from specchat.app.ui.widgets.panel import Panel
from specchat.app.ui.widgets.prompt_frame import Chips, CommandHint, PromptFrame
from specchat.app.ui.widgets.step_bar import StepBar
from specchat.app.ui.widgets.timeline import Timeline
from specchat.app.ui.widgets.transcript import Transcript
from specchat.app.ui.widgets.welcome import Welcome


class ChatLayout:
    """All widgets of a chat, or of a replay where there is a player."""

    def __init__(self, player: Player | None) -> None:
        self._replaying = player is not None
        self.masthead = Masthead(id="masthead")
        self.tabs = PaneTabs(PANES, "chat", id="tabs")
        self.chats = ChatList(id="chats")
        self.welcome = Welcome(id="welcome")
        self.welcome.offering = not self._replaying
        self.transcript = Transcript(Conversation(), id="transcript")
        self.timeline = Timeline(id="timeline")
        self.step_bar = StepBar(id="steps")
        self.frame = PromptFrame(player.name if player else None, id="ask")
        self.hint = CommandHint(id="hint")
        self.chips = Chips(id="chips")
        self.composer = Composer(id="composer")
        self.replay_bar = ReplayBar(id="replay")
        self.panel = Panel(id="panel")
        self.inspector = Inspector(replaying=self._replaying, id="inspector")

        self.show_empty(empty=True)

    def show_empty(self, *, empty: bool) -> None:
        """Show the welcome where the conversation is empty, else what was said and its rounds.

        A class of the screen would do, but every widget of it would be styled anew for that.
        """
        self.empty = empty
        """Whether the welcome is shown."""
        for widget, shown in ((self.welcome, empty), (self.transcript, not empty), (self.timeline, not empty)):
            widget.styles.display = None if shown else "none"  # else as the style sheets say

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
                    yield self.replay_bar if self._replaying else self.composer
            yield self.panel
            yield self.inspector
        yield NoticeLine()
        yield KeyBar()
        yield TooSmall(id="too-small")
