"""What the chat screen shows of the engine: how far loading is, what was loaded, and how busy the machine is."""

from __future__ import annotations

from collections.abc import Callable

from specchat.app.chat.conversation import Conversation
from specchat.app.ui.screens.chat_layout import ChatLayout
from specchat.app.ui.screens.inspection import Inspection
from specchat.engine import Loading, Ready, gamma_text


class ChatStatus:
    """Keeps the header, the welcome, the composer's frame and the panel's set-up at the same state.

    Args:
        widgets: Those of the screen.
        inspection: Stands in for a reply where there is none yet.
        conversation: The one that is shown.
        ready: What is said once the models are loaded.
    """

    def __init__(
        self, widgets: ChatLayout, inspection: Inspection, conversation: Callable[[], Conversation], ready: str
    ) -> None:
        self._widgets = widgets
        self._inspection = inspection
        self._conversation = conversation
        self._ready = ready

    def show_loading(self, state: Loading | str, *, failed: bool = False) -> None:
        """Show the progress of loading, or how it ended."""
        self._widgets.frame.show_loading(state, failed=failed)
        self._widgets.welcome.show(state, failed=failed)
        self._widgets.frame.show(self._conversation())

    def show_models(self, target: str, drafter: str, gamma: int | None, *, lossless: bool = True) -> None:
        """Show target, drafter and γ at the top."""
        no_reply = self._inspection.no_reply
        no_reply.drafter, no_reply.gamma = drafter, gamma_text(gamma)
        self._widgets.masthead.show_models(target, drafter, gamma, lossless=lossless)

    def show_ready(self, ready: Ready) -> None:
        """The models are loaded."""
        self._widgets.masthead.show_machine(ready)
        self._widgets.panel.show_machine(ready)
        self.show_loading(self._ready)

    def show_load(self, gpu: str, interface: float | None) -> None:
        """Show the load of the machine."""
        self._widgets.panel.show_load(gpu, interface)
