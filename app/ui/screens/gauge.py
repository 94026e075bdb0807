"""Keeps the composer's chips and the context's bar at what is typed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from textual.screen import Screen
from textual.timer import Timer

from specchat.app.chat.context_meter import ContextMeter, Usage
from specchat.app.chat.conversation import Conversation
from specchat.app.chat.request_manager import RequestManager
from specchat.app.chat.tray import mentions
from specchat.app.sanitize import clean_prompt
from specchat.app.settings.settings import STOP
from specchat.app.storage.attachments import Attachment
from specchat.app.ui import slash
from specchat.app.ui.rendering.figures import in_words
from specchat.app.ui.screens.chat_layout import ChatLayout
from specchat.engine import Counted

COUNT_S = 0.3
"""Tokens are counted once nothing was typed for so long."""


class Gauge:
    """Reads the files that are named, asks for counts, and shows both.

    Args:
        screen: Runs timer and worker.
        widgets: Those of the screen.
        requests: Asks the engine, and has the settings.
        conversation: The one that is shown.
    """

    def __init__(
        self,
        screen: Screen[None],
        widgets: ChatLayout,
        requests: RequestManager,
        conversation: Callable[[], Conversation],
    ) -> None:
        self._screen = screen
        self._widgets = widgets
        self._requests = requests
        self._conversation = conversation
        self._meter = ContextMeter(requests.count, self._take_tokens)
        self._timer: Timer | None = None

    @property
    def usage(self) -> Usage | None:
        """What the context would hold; None while that is not known."""
        return self._meter.usage

    @property
    def when_full(self) -> str:
        """What happens to a prompt that does not fit."""
        return self._requests.settings.when_full if self._requests.settings is not None else STOP

    def begin(self, context: int) -> None:
        """The models are loaded: prompts can be counted."""
        self._meter.begin(context)
        self.ask()

    def typed(self) -> None:
        """Something was typed: look at it once nothing more is for a while."""
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
            self._screen.run_worker(
                partial(self._read, text), thread=True, group="attachments", exclusive=True, exit_on_error=False
            )

    def ask(self) -> None:
        """Ask what the prompt would take behind the conversation as it now is."""
        text = self._prompt
        self._meter.ask(self._conversation(), text, self._widgets.composer.tray.attached(text))
        self.show()

    def take(self, counted: Counted) -> None:
        """An answer has come."""
        if self._meter.take(counted):
            self.show()

    def show(self) -> None:
        """Show the chips, and how full the context is: while something is typed, and once most of it is taken."""
        composer, frame, usage = self._widgets.composer, self._widgets.frame, self.usage
        prompt = self._prompt
        refused = list(composer.tray.refused.values()) if prompt else []
        self._widgets.chips.show(composer.tray.attached(prompt), refused)
        shown = usage is not None and bool(usage.prompt + usage.attached if prompt else 2 * usage.total > usage.context)
        frame.usage, frame.when_full = usage if shown else None, self.when_full
        frame.tooltip = in_words(usage, self.when_full) if usage is not None else None
        frame.show(self._conversation())

    def refusal(self, content: str) -> str:
        """Why this is not sent; empty where it is. What has not been counted, the engine refuses by itself."""
        usage = self.usage
        counted = usage is not None and self._meter.counted == content and not self._conversation().running
        if usage is None or not counted or usage.room > 0 or self.when_full != STOP:
            return ""
        return (
            f"not sent: with what was said before it has {usage.total:,} tokens and the context holds "
            f"{usage.context:,}: shorten it, begin a new chat, or let turns go with /context drop-oldest"
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
        self._requests.set_tokens(self._conversation(), one, tokens)
