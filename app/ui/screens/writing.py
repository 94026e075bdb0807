"""The composer: unsent text of each chat, editing a prompt, attachments, and the size of the context."""

from collections.abc import Mapping
from functools import partial

from textual.timer import Timer

from specchat.app.chat.attachments import content_of
from specchat.app.chat.context_meter import ContextMeter, Usage
from specchat.app.chat.conversation import Conversation, Prompt
from specchat.app.chat.tray import Unsent, UnsentTexts, mention, mentions
from specchat.app.sanitize import clean_prompt
from specchat.app.settings.settings import STOP
from specchat.app.storage.attachments import Attachment
from specchat.app.ui import slash
from specchat.app.ui.rendering.figures import in_words
from specchat.app.ui.screens.chat_layout import ChatBase
from specchat.engine import Counted

COUNT_S = 0.3
"""Tokens are counted once nothing was typed for so long."""


class Writing:
    """Keeps the composer, its frame and its hint up to date."""

    def __init__(self, screen: ChatBase) -> None:
        self._screen = screen
        self._widgets = screen.widgets
        self._composer = screen.widgets.composer
        self._unsent = UnsentTexts()
        self.gauge = Gauge(screen)
        self._asked: list[str] = []
        """Prompts of all chats when the app started, as they are typed."""
        self.editing: tuple[Prompt, str, tuple[Attachment, ...]] | None = None
        """The prompt that is being edited; the text and attachments that the composer had before."""
        self._as_put = ""
        """The edited prompt before any change."""

    @property
    def unsent(self) -> UnsentTexts:
        """Unsent text of all chats."""
        self.keep()
        return self._unsent

    def keep(self) -> None:
        """Keep the unsent text of the conversation on screen, followed by an edited prompt if it was changed."""
        text, attached = self._composer.unsent
        if self.editing is not None:
            _, before, others = self.editing
            changed = text not in (self._as_put, "")
            text = "\n\n".join(part for part in (before, text if changed else "") if part)
            attached = tuple(dict.fromkeys((*others, *attached))) if changed else others
        self._unsent.keep(self._screen.conversation, text, attached)

    def refused(self, prompt: str, attachments: tuple[Attachment, ...]) -> bool:
        """Whether the context is too full for a prompt; then it is put back into the composer, with a notice."""
        sentence = self.gauge.refusal(content_of(prompt, attachments))
        if sentence:
            self._composer.take_back([prompt])
            self._screen.notify(sentence, severity="error")
        return bool(sentence)

    def take_back(self, waiting: list[Prompt]) -> Unsent:
        """Put waiting prompts in front of the unsent text; return what is unsent then."""
        if waiting:
            attachments = tuple(one for prompt in waiting for one in prompt.attachments)
            self.put_before(slash.escaped("\n\n".join(prompt.text for prompt in waiting)), attachments)
        return self.unsent.of(self._screen.conversation)

    def put_before(self, typed: str, attachments: tuple[Attachment, ...]) -> None:
        """Put a typed text in front of the unsent text. While a prompt is being edited, it is shown after the edit."""
        if self.editing is None:
            self._composer.tray.hold([*self._composer.unsent[1], *attachments])
            self._composer.take_back([typed])
        else:
            edited, before, kept = self.editing
            text = f"{typed}\n\n{before}" if before else typed
            self.editing = edited, text, tuple(dict.fromkeys((*attachments, *kept)))

    def restore(self, texts: Mapping[int, str], attachments: Mapping[int, tuple[Attachment, ...]]) -> None:
        """Restore the unsent text of an earlier run."""
        self.unsent.fill(texts, attachments)
        if not self._composer.text:
            self._put_unsent(self._screen.conversation)

    def show(self, conversation: Conversation) -> None:
        """Show the unsent text of the conversation that is now on screen."""
        self._remember()
        self._put_unsent(conversation)

    def remember_asked(self, prompts: list[str]) -> None:
        """Add the prompts of all chats, oldest first, to the composer's history, before the prompts of this chat."""
        self._asked = [slash.escaped(prompt) for prompt in prompts]
        self._remember()

    def changed(self) -> None:
        """The text has changed: show completions, and count its tokens."""
        self._widgets.hint.show(self._composer.menu, self._composer.marked, self._composer.path_begun)
        self.gauge.typed()

    def edit(self, prompt: Prompt) -> None:
        """Edit a prompt: put it into the composer."""
        self.editing = prompt, *self.unsent.of(self._screen.conversation)
        self._composer.tray.hold(prompt.attachments)
        number = self._screen.conversation.prompts.index(prompt) + 1
        self._widgets.frame.editing = f"another version of message {number}"
        self._widgets.show_frame()
        text = slash.escaped(prompt.text)
        named = self._composer.tray.attached(text)
        unnamed = [mention(one.name) for one in prompt.attachments if one not in named]  # `specchat ask --file`
        self._composer.begin("\n".join([" ".join(unnamed), text]) if unnamed else text)
        self._as_put = self._composer.text
        self._screen.refresh_bindings()

    def end_edit(self) -> Prompt | None:
        """Stop editing and restore the composer; returns the prompt that was edited."""
        if self.editing is None:
            return None
        prompt, before, attachments = self.editing
        self.editing = None
        self._composer.tray.hold(attachments)
        self._widgets.frame.editing = ""
        self._widgets.show_frame()
        self._composer.begin(before)
        self._screen.refresh_bindings()
        return prompt

    def _put_unsent(self, conversation: Conversation) -> None:
        text, attachments = self._unsent.of(conversation)
        self._composer.tray.hold(attachments)
        self._composer.begin(text)

    def _remember(self) -> None:
        for prompt in self._screen.conversation.prompts:
            self._composer.tray.know(prompt.attachments)
        own = [slash.escaped(prompt.text) for prompt in self._screen.conversation.prompts if prompt.text]
        self._composer.remember([*(text for text in self._asked if text not in own), *own])


class Gauge:
    """Reads the files that the prompt names, counts tokens, and shows attachments and the size of the context."""

    def __init__(self, screen: ChatBase) -> None:
        self._screen = screen
        self._widgets = screen.widgets
        self._meter = ContextMeter(screen.requests.count, self._take_tokens)
        self._timer: Timer | None = None

    @property
    def usage(self) -> Usage | None:
        """What the context would hold; None until it is known."""
        return self._meter.usage

    @property
    def when_full(self) -> str:
        """What happens to a prompt that does not fit."""
        return self._screen.requests.settings.when_full if self._screen.requests.settings is not None else STOP

    def begin(self, context: int) -> None:
        """The models are loaded: prompts can be counted."""
        self._meter.begin(context)
        self.ask()

    def typed(self) -> None:
        """The prompt has changed: count its tokens once it stays the same for a while."""
        if self._timer is not None:
            self._timer.stop()
        self._timer = self._screen.set_timer(COUNT_S, self.look)
        self.show()

    def look(self) -> None:
        """Read the files that the prompt names, and count."""
        text = self._prompt
        if next(mentions(text), None) is None:
            self.ask()
        else:
            read = partial(self._read, text)
            self._screen.run_worker(read, thread=True, group="attachments", exclusive=True, exit_on_error=False)

    def ask(self) -> None:
        """Count the tokens of the conversation with the prompt."""
        text = self._prompt
        self._meter.ask(self._screen.conversation, text, self._widgets.composer.tray.attached(text))
        self.show()

    def take(self, counted: Counted) -> None:
        """Process a count."""
        if self._meter.take(counted):
            self.show()

    def show(self) -> None:
        """Show the attachments, and the size of the context while there is a prompt or if half of it is used."""
        composer, frame, usage = self._widgets.composer, self._widgets.frame, self.usage
        prompt = self._prompt
        refused = list(composer.tray.refused.values()) if prompt else []
        self._widgets.chips.show(composer.tray.attached(prompt), refused)
        shown = usage is not None and bool(usage.prompt + usage.attached if prompt else 2 * usage.total > usage.context)
        frame.usage, frame.when_full = usage if shown else None, self.when_full
        frame.tooltip = in_words(usage, self.when_full) if usage is not None else None
        self._widgets.show_frame()

    def refusal(self, content: str) -> str:
        """Why a prompt is not sent; empty if it is. The engine itself refuses prompts that were not counted."""
        usage = self.usage
        counted = usage is not None and self._meter.counted == content and not self._screen.conversation.running
        if usage is None or not counted or usage.room > 0 or self.when_full != STOP:
            return ""
        return (
            f"not sent: with the conversation it has {usage.total:,} tokens, and the context holds "
            f"{usage.context:,}: shorten it, begin a new chat, or leave out earlier turns (alt+c: drop-oldest or "
            "keep-ends)"
        )

    @property
    def _prompt(self) -> str:
        text = clean_prompt(self._widgets.composer.text).strip()
        return "" if slash.is_command(text) else text

    def _read(self, text: str) -> None:
        self._widgets.composer.tray.look(text)
        self._screen.app.call_from_thread(self.ask)

    def _take_tokens(self, one: Attachment, tokens: int) -> None:
        self._widgets.composer.tray.set_tokens(one, tokens)
        self._screen.requests.set_tokens(self._screen.conversation, one, tokens)
