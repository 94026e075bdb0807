"""What stands in the composer: the unsent text of each chat, another version of a prompt, and what is said about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from textual.screen import Screen

from specchat.app.chat.attachments import content_of
from specchat.app.chat.conversation import Conversation
from specchat.app.chat.request_manager import RequestManager
from specchat.app.chat.tray import mention
from specchat.app.chat.turn import Turn
from specchat.app.chat.unsent import UnsentTexts
from specchat.app.errors import AppError
from specchat.app.storage.attachments import Attachment
from specchat.app.ui import slash
from specchat.app.ui.notices import say
from specchat.app.ui.screens.chat_layout import ChatLayout
from specchat.app.ui.screens.gauge import Gauge


class Writing:
    """Keeps the composer, its frame and its hint at what is being written.

    Args:
        screen: Has the timers.
        requests: Counts tokens.
        widgets: Those of the screen.
        conversation: The one that is shown.
    """

    def __init__(
        self,
        screen: Screen[None],
        requests: RequestManager,
        widgets: ChatLayout,
        conversation: Callable[[], Conversation],
    ) -> None:
        self._screen = screen
        self._composer, self._frame, self._hint = widgets.composer, widgets.frame, widgets.hint
        self._conversation = conversation
        self._unsent = UnsentTexts()
        self.gauge = Gauge(screen, widgets, requests, conversation)
        """What is attached, and how full the context is."""
        self._asked: list[str] = []
        """Prompts of all chats as of the start."""
        self._editing: tuple[Turn, str, tuple[Attachment, ...]] | None = None
        """The turn of which another version is being written, and what stood in the composer before."""
        self._as_put = ""
        """That version as it was when nothing had been changed yet."""

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
        """Keep what is typed in the conversation that is shown; below it, what another version of a prompt became."""
        text, attached = self._composer.text, self._composer.attached
        if self._editing is not None:
            _, before, others = self._editing
            changed = text not in (self._as_put, "")
            text = "\n\n".join(part for part in (before, text if changed else "") if part)
            attached = tuple(dict.fromkeys((*others, *attached))) if changed else others
        self._unsent.keep(self._conversation(), text, attached)

    @property
    def editing(self) -> bool:
        """Whether another version of a prompt is being written."""
        return self._editing is not None

    def put(self, text: str) -> None:
        """Show a text in the composer, to be changed and sent."""
        self._composer.put(text)

    @property
    def attached(self) -> tuple[Attachment, ...]:
        """What is attached to it."""
        return self._composer.attached

    def expand_paste(self, paste: Attachment) -> None:
        """Put a paste in the place of its sign."""
        self._composer.expand_paste(paste)

    def detach(self, attachment: Attachment) -> None:
        """Take an attachment out of the prompt."""
        self._composer.detach(attachment)

    def resolved(self, prompt: str) -> tuple[Attachment, ...] | None:
        """What is sent along with a prompt; None where that cannot be, which is said then."""
        try:
            return self._composer.tray.resolved(prompt)
        except AppError as error:
            say(self._screen.app, str(error), "error")
            return None

    def refused(self, prompt: str, attachments: tuple[Attachment, ...]) -> bool:
        """Whether a prompt is not sent, as the context is full: it stands in the composer again, and that is said."""
        sentence = self.gauge.refusal(content_of(prompt, attachments))
        if sentence:
            self.put(prompt)
            say(self._screen.app, sentence, "error")
        return bool(sentence)

    def sent(self) -> None:
        """The prompt is on its way: its files are read anew for the next one."""
        self._composer.tray.hold(())

    def take_back(self, waiting: list[Turn]) -> None:
        """The prompts of these turns, which wait, come before what stands in the composer."""
        if waiting:
            attachments = [one for turn in waiting for one in turn.attachments]
            self._composer.tray.hold([*self._composer.attached, *attachments])
            self._composer.take_back([turn.prompt for turn in waiting])

    def restore(self, texts: Mapping[int, str], attachments: Mapping[int, tuple[Attachment, ...]]) -> None:
        """Take over what was typed and not sent in an earlier run."""
        unsent = self.unsent
        unsent.fill(texts, attachments)
        if not self._composer.text:
            self._put_unsent(self._conversation())

    def show(self, conversation: Conversation) -> None:
        """Show what is typed and not sent in a conversation that is now on screen; that of the one before is kept."""
        self._remember()
        self._put_unsent(conversation)

    def complete_with(self, words: slash.Words) -> None:
        """What can stand behind the commands that are typed."""
        self._composer.words = words

    def remember_asked(self, prompts: list[str]) -> None:
        """What was asked in all chats, oldest first: the composer brings it back behind what was asked in this one."""
        self._asked = prompts
        self._remember()

    def changed(self) -> None:
        """Say what the command or the path that is being typed may become, or how many tokens the prompt has."""
        self._hint.show(self._composer.text, self._composer.words, self._composer.path_begun)
        self.gauge.typed()

    def edit(self, turn: Turn) -> None:
        """Let the user write another version of a prompt."""
        before = (self.text, self.attached) if self._editing is None else self._editing[1:]
        self._editing = turn, *before
        self._composer.tray.hold(turn.attachments)
        self._frame.editing = f"another version of message {self._conversation().turns.index(turn) + 1}"
        self._frame.show(self._conversation())
        prompt = f"/{turn.prompt}" if slash.is_command(turn.prompt) else turn.prompt
        named = self._composer.tray.attached(prompt)
        unnamed = [mention(one.name) for one in turn.attachments if one not in named]  # `specchat ask --file`
        self.put("\n".join([" ".join(unnamed), prompt]) if unnamed else prompt)
        self._as_put = self.text
        self._screen.refresh_bindings()

    def end_edit(self) -> Turn | None:
        """Write no other version; what stood in the composer before comes back. The turn it was one of."""
        if self._editing is None:
            return None
        turn, before, attachments = self._editing
        self._editing = None
        self._composer.tray.hold(attachments)
        self._frame.editing = ""
        self._frame.show(self._conversation())
        self.put(before)
        self._screen.refresh_bindings()
        return turn

    def _put_unsent(self, conversation: Conversation) -> None:
        self._composer.tray.hold(self._unsent.attachments_of(conversation))
        self.put(self._unsent.of(conversation))

    def _remember(self) -> None:
        for turn in self._conversation().turns:
            self._composer.tray.know(turn.attachments)
        own = [turn.prompt for turn in self._conversation().turns]
        self._composer.remember([*(prompt for prompt in self._asked if prompt not in own), *own])
