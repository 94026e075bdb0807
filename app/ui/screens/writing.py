"""What stands in the composer: the unsent text of each chat, another version of a prompt, and what is said about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from textual.screen import Screen
from textual.timer import Timer

from specchat.app.chat.conversation import Conversation, Turn
from specchat.app.chat.request_manager import RequestManager
from specchat.app.chat.unsent import UnsentTexts
from specchat.app.ui import slash
from specchat.app.ui.screens.chat_layout import ChatLayout
from specchat.app.ui.screens.chat_status import ChatStatus

COUNT_S = 0.3
"""How long nothing must be typed before the tokens are counted."""


class Writing:
    """Keeps the composer, its frame and its hint at what is being written.

    Args:
        screen: Has the timers.
        requests: Counts tokens.
        widgets: Those of the screen.
        status: Shows the count.
        conversation: The one that is shown.
    """

    def __init__(
        self,
        screen: Screen[None],
        requests: RequestManager,
        widgets: ChatLayout,
        status: ChatStatus,
        conversation: Callable[[], Conversation],
    ) -> None:
        self._screen = screen
        self._requests = requests
        self._composer, self._frame, self._hint = widgets.composer, widgets.frame, widgets.hint
        self._status = status
        self._conversation = conversation
        self._unsent = UnsentTexts()
        self._counting: Timer | None = None
        """Asks for the number of tokens once nothing is typed for a while."""
        self._asked: list[str] = []
        """Prompts of all chats as of the start."""
        self._editing: tuple[Turn, str] | None = None
        """The turn of which another version is being written, and what stood in the composer before."""

    @property
    def text(self) -> str:
        """What stands in the composer."""
        return self._composer.text

    @property
    def unsent(self) -> UnsentTexts:
        """What is typed and not sent, in this chat and in the others."""
        self.keep()
        return self._unsent

    def keep(self) -> None:
        """Keep what is typed in the conversation that is shown."""
        self._unsent.keep(self._conversation(), self._composer.text)

    @property
    def editing(self) -> bool:
        """Whether another version of a prompt is being written."""
        return self._editing is not None

    def put(self, text: str) -> None:
        """Show a text in the composer, to be changed and sent."""
        self._composer.put(text)

    def restore(self, texts: Mapping[int, str]) -> None:
        """Take over what was typed and not sent in an earlier run."""
        unsent = self.unsent
        unsent.fill(texts)
        if not self._composer.text:
            self.put(unsent.of(self._conversation()))

    def show(self, conversation: Conversation) -> None:
        """Show what is typed and not sent in a conversation that is now on screen; that of the one before is kept."""
        self._remember()
        self._composer.put(self._unsent.of(conversation))

    def complete_with(self, words: slash.Words) -> None:
        """What can stand behind the commands that are typed."""
        self._composer.words = words

    def remember_asked(self, prompts: list[str]) -> None:
        """What was asked in all chats, oldest first: the composer brings it back behind what was asked in this one."""
        self._asked = prompts
        self._remember()

    def changed(self) -> None:
        """Say what the command that is being typed takes, or how many tokens the prompt has."""
        text = self._composer.text
        self._hint.show(text, self._composer.words)
        if self._counting is not None:
            self._counting.stop()
        if text.strip() and not slash.is_command(text):
            self._counting = self._screen.set_timer(COUNT_S, lambda: self._requests.count(self._conversation(), text))
        elif self._frame.tokens is not None:
            self._status.show_count(None)

    def edit(self, turn: Turn) -> None:
        """Let the user write another version of a prompt."""
        self._editing = turn, self._editing[1] if self._editing is not None else self.text
        self._frame.editing = f"another version of message {self._conversation().turns.index(turn) + 1}"
        self._frame.show(self._conversation())
        self.put(f"/{turn.prompt}" if slash.is_command(turn.prompt) else turn.prompt)
        self._screen.refresh_bindings()

    def end_edit(self) -> Turn | None:
        """Write no other version; what stood in the composer before comes back. The turn it was one of."""
        if self._editing is None:
            return None
        turn, before = self._editing
        self._editing = None
        self._frame.editing = ""
        self._frame.show(self._conversation())
        self.put(before)
        self._screen.refresh_bindings()
        return turn

    def _remember(self) -> None:
        own = [turn.prompt for turn in self._conversation().turns]
        self._composer.remember([*(prompt for prompt in self._asked if prompt not in own), *own])
