"""The text area for prompts: as many lines as needed, up to a limit; arrow keys bring earlier prompts back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.events import Key
from textual.message import Message
from textual.widgets import TextArea

from specchat.app.sanitize import clean_prompt, escape_controls
from specchat.app.ui import slash
from specchat.app.ui.first_prompts import FIRST_PROMPTS
from specchat.app.ui.keys import keys_of, named

_NEWLINES = ("ctrl+j", "shift+enter", "alt+enter")
OFFERED = ("", *(prompt.text for prompt in FIRST_PROMPTS))
"""What tab goes through in the composer of an empty chat."""


class Composer(TextArea):
    """A text area of which enter sends the text; tab completes commands."""

    BINDINGS: ClassVar[list[BindingType]] = named(
        "composer",
        Binding("enter", "send", "send"),
        Binding(",".join(_NEWLINES), "newline", "new line", key_display="^j", show=False),
        Binding("up", "earlier", "Earlier prompt", show=False),
        Binding("down", "later", "Later prompt", show=False),
        Binding("pageup", "screen.scroll(-1)", "Scroll up", show=False),
        Binding("pagedown", "screen.scroll(1)", "Scroll down", show=False),
    )

    @dataclass
    class Sent(Message):
        """The user wants this to be sent."""

        text: str

    class HelpWanted(Message):
        """The user asked for help in an empty composer."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            placeholder="Ask anything", compact=True, highlight_cursor_line=False, tab_behavior="focus", **options
        )
        self._history: list[str] = []
        self._place = 0
        """Which prompt of the history is shown; its length while the user writes a new one."""
        self._unsent = ""
        self.words: slash.Words = {}
        """What can stand behind a slash command."""
        self.offering = True
        """Whether tab puts in the first prompts, one after the other: in an empty chat."""
        self._stem: str | None = None
        """The line that tab began to complete."""

    def remember(self, prompts: list[str]) -> None:
        """Begin with these earlier prompts."""
        self._history = list(prompts)
        self._place = len(self._history)

    def put(self, text: str) -> None:
        """Show a text, the cursor behind it."""
        self.load_text(text)
        self.move_cursor(self.document.end)

    def take_back(self, prompts: list[str]) -> None:
        """Put prompts that were not sent before what stands here."""
        self.put("\n\n".join([*prompts, self.text] if self.text else prompts))

    def get_line(self, line_index: int) -> Text:
        """A line as it is drawn: what steers a terminal, or hides in it, is a visible sign."""
        line = super().get_line(line_index)
        line.plain = escape_controls(line.plain)
        return line

    def on_key(self, event: Key) -> None:
        """Enter sends and ^j breaks the line, in their turn: as bindings they would overtake keys typed just before.

        A question mark that begins a prompt asks for help.
        """
        sends = event.key in keys_of(self.app, "composer.send")
        if sends or event.key in keys_of(self.app, "composer.new-line"):
            event.prevent_default()
            event.stop()
            if sends:
                self.action_send()
            else:
                self.action_newline()
        elif event.key == "tab" and slash.is_command(self.text):
            event.prevent_default()
            event.stop()
            self._complete()
        elif event.key == "tab" and self.offering and self.text in OFFERED:
            event.prevent_default()
            event.stop()
            self.put(OFFERED[(OFFERED.index(self.text) + 1) % len(OFFERED)])
        elif event.character == "?" and not self.text:
            event.prevent_default()
            event.stop()
            self.post_message(self.HelpWanted())

    def action_send(self) -> None:
        """Hand the text over, if there is any."""
        text = clean_prompt(self.text).strip()
        if not text:
            return
        self.remember([*(p for p in self._history if p != text), text])
        self.clear()
        self.post_message(self.Sent(text))

    def _complete(self) -> None:
        """As far as it is clear; where it is not, each press of tab shows the next thing it may be."""
        found = slash.matches(self._stem, self.words) if self._stem is not None else []
        if self.text in found:
            self.put(found[(found.index(self.text) + 1) % len(found)])
            return
        further = slash.completed(self.text, self.words)
        choices = [line for line in slash.matches(self.text, self.words) if line != self.text]
        if further != self.text:
            self._stem = None
            self.put(further)
        elif choices:
            self._stem = self.text
            self.put(choices[0])

    def action_newline(self) -> None:
        """Begin another line."""
        self._replace_via_keyboard("\n", *self.selection)

    def action_earlier(self) -> None:
        """A line up; from the first one, the prompt before."""
        if self._place > 0 and self.navigator.is_first_wrapped_line(self.cursor_location):
            if self._place == len(self._history):
                self._unsent = self.text
            self._show(self._place - 1)
        else:
            self.action_cursor_up()

    def action_later(self) -> None:
        """A line down; from the last one, the prompt after, and at the end what was being written."""
        if self._place < len(self._history) and self.navigator.is_last_wrapped_line(self.cursor_location):
            self._show(self._place + 1)
        else:
            self.action_cursor_down()

    def _show(self, place: int) -> None:
        self._place = place
        self.put(self._history[place] if place < len(self._history) else self._unsent)
