"""The panes beside the conversation, and where the focus is."""

from __future__ import annotations

from textual.screen import Screen
from textual.widget import Widget

from specchat.app.ui.widgets.bars import PaneTabs
from specchat.app.ui.widgets.chat_list import ChatList

PANES = ("chat", "chats", "panel", "rounds")


class Panes:
    """Chats, panel and timeline beside the conversation where there is room, behind tabs where there is not.

    Args:
        screen: Has a class for each state; its style sheet shows and hides.
        tabs: Names the panes on a narrow screen.
        chats: The list of chats.
        timeline: The rounds.
        home: What has the focus unless the user goes elsewhere: the composer; in a replay, the transcript.
    """

    def __init__(self, screen: Screen[None], tabs: PaneTabs, chats: ChatList, timeline: Widget, home: Widget) -> None:
        self._screen = screen
        self._tabs = tabs
        self._chats = chats
        self._timeline = timeline
        self._home = home

    @property
    def elsewhere(self) -> bool:
        """Whether the conversation is hidden, or the list of chats has the focus."""
        return not self._screen.has_class("-pane-chat") or self._chats.has_focus

    def select(self, pane: str) -> None:
        """On a narrow screen: show this pane; the focus stays."""
        for name in PANES:
            self._screen.set_class(name == pane, f"-pane-{name}")
        self._tabs.show(pane)

    def show(self, pane: str) -> None:
        """Show this pane, and go there."""
        self.select(pane)
        if pane == "chats":
            self._chats.focus()
        elif pane == "rounds":
            self._timeline.focus()
        else:
            self.go_home()

    def toggle(self, pane: str) -> None:
        """Fold or show the chats or the panel. Chats that are shown get the focus before they are folded."""
        screen = self._screen
        if screen.has_class("-narrow"):
            self.show("chat" if screen.has_class(f"-pane-{pane}") else pane)
            return
        unfold = pane == "chats" and screen.has_class("-medium")
        shown = screen.has_class("-with-chats") if unfold else not screen.has_class(f"-no-{pane}")
        if pane == "chats" and shown and not self._chats.has_focus:
            self._chats.focus()
            return
        screen.toggle_class("-with-chats" if unfold else f"-no-{pane}")
        if pane == "chats" and not shown:
            self._chats.focus()
        else:
            self.go_home()

    def toggle_timeline(self) -> None:
        """Go to the timeline; from there, fold it."""
        screen = self._screen
        if screen.has_class("-narrow"):
            self.show("chat" if screen.has_class("-pane-rounds") else "rounds")
        elif screen.has_class("-no-timeline") or not self._timeline.display:
            screen.remove_class("-no-timeline")
            screen.add_class("-with-timeline")
            self._timeline.focus()
        elif not self._timeline.has_focus:
            self._timeline.focus()
        else:
            screen.add_class("-no-timeline")
            screen.remove_class("-with-timeline")
            self.go_home()

    def go_home(self) -> None:
        """Give the focus to where one writes; in a replay, to the tokens."""
        self._home.focus()
