"""The part of the chat screen that knows what stands beside the conversation, and where the focus is."""

from __future__ import annotations

from app.player import Player
from app.screens.looking import Looking
from app.widgets.chat_list import ChatList
from app.widgets.composer import Composer
from app.widgets.pane_tabs import PaneTabs


class Panes(Looking):
    """Chats and panel beside the conversation where there is room, behind tabs where there is not."""

    def __init__(self, classes: str, player: Player | None) -> None:
        super().__init__(classes, player)
        self._tabs = PaneTabs(id="tabs")
        self._chats = ChatList(id="chats")
        self._composer = Composer(id="composer")

    def set_pane(self, pane: str) -> None:
        """On a narrow screen: show the chat, the chats or the panel."""
        for name in PaneTabs.PANES:
            self.set_class(name == pane, f"-pane-{name}")
        self._tabs.show(pane)

    @property
    def elsewhere(self) -> bool:
        """Whether what is shown, or has the focus, is not the conversation."""
        return not self.has_class("-pane-chat") or self._chats.has_focus or self.looking

    def action_pane(self, pane: str) -> None:
        """Fold or show the chats or the panel. Chats that are shown get the focus before they are folded."""
        if self.has_class("-narrow"):
            self.action_tab("chat" if self.has_class(f"-pane-{pane}") else pane)
            return
        unfold = pane == "chats" and self.has_class("-medium")
        shown = self.has_class("-with-chats") if unfold else not self.has_class(f"-no-{pane}")
        if pane == "chats" and shown and not self._chats.has_focus:
            self._chats.focus()
            return
        self.toggle_class("-with-chats" if unfold else f"-no-{pane}")
        if pane == "chats" and not shown:
            self._chats.focus()
        else:
            self.focus_composer()

    def action_tab(self, pane: str) -> None:
        """A click on a pane's name."""
        self.set_pane(pane)
        if pane == "chats":
            self._chats.focus()
        elif pane == "rounds":
            self._timeline.focus()
        else:
            self.focus_composer()

    def show_pane(self, pane: str) -> None:
        """Show a pane, and go there."""
        self.action_tab(pane)

    def leave_views(self) -> None:
        """Back to where one writes."""
        self.focus_composer()

    def focus_composer(self) -> None:
        """To where one writes; in a replay, to the tokens."""
        (self._transcript if self._player else self._composer).focus()
