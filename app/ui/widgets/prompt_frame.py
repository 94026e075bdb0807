"""The frame around the composer: the chat's title above, the state of the engine below."""

from __future__ import annotations

from typing import Any

from textual.containers import Vertical
from textual.content import Content

from specchat.app.chat.context_meter import Usage
from specchat.app.chat.conversation import Conversation
from specchat.app.sanitize import escape_controls
from specchat.app.settings.settings import STOP
from specchat.app.ui.rendering.context_bar import context_bar
from specchat.engine import Loading

SYSTEM_LENGTH = 30
"""Characters of the system prompt that are shown."""
ENGINE_STOPPED = "the engine has stopped"
STOPPING = "stopping…"


class PromptFrame(Vertical):
    """Follows the conversation and the loading of the models; in a replay, it has the name of the trace."""

    def __init__(self, trace: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._trace = trace
        self.editing = ""
        """What is being written, if it is no new prompt."""
        self._state: Loading | str = Loading("import", "starting", None, 0.0)
        self._failed = False
        self.usage: Usage | None = None
        """How full the context is; None where that is not shown."""
        self.when_full = STOP
        """What happens to what does not fit."""
        self._said = (Content(""), Content(""))
        """Above and below the composer."""

    def show_loading(self, state: Loading | str, *, failed: bool) -> None:
        """How far loading has got, or how it ended; `show` says it."""
        self._state, self._failed = state, failed

    def show(self, conversation: Conversation) -> None:
        """Follow this conversation."""
        said = self._of(conversation)
        if not all(map(Content.is_same, said, self._said)):  # to set a title draws the frame again
            self._said = said
            self.border_title, self.border_subtitle = said

    def _of(self, conversation: Conversation) -> tuple[Content, Content]:
        """What is said above and below, as text: not as markup."""
        if self._trace is not None:
            return Content(escape_controls(self._trace)), Content("")
        if self.editing:
            return Content(self.editing), Content("enter sends · esc cancels")
        title = escape_controls(conversation.title)
        named = title[:60] if title.strip() else "new chat"
        system = " ".join(escape_controls(conversation.system or "").split())
        short = system if len(system) <= SYSTEM_LENGTH else system[: SYSTEM_LENGTH - 1] + "…"
        parts = [Content(state)] if (state := self._engine_state(conversation)) else []
        if self.usage is not None:
            parts.append(context_bar(self.usage, self.when_full))
        return Content(f"{named} · system: {short}" if short else named), Content(" · ").join(parts)

    def _engine_state(self, conversation: Conversation) -> str:
        running = conversation.all_running
        if self._failed:
            return ENGINE_STOPPED
        if running:
            return STOPPING if all(reply.stopping for reply in running) else "answering · esc stops"
        return loading_text(self._state) if isinstance(self._state, Loading) else ""


def loading_text(loading: Loading) -> str:
    """What is being loaded, and how much of it has been."""
    share = "" if loading.fraction is None else f" {loading.fraction * 100:.0f} %"
    return f"{escape_controls(loading.text)}{share}"
