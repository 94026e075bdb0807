"""The text area for prompts: as many lines as needed, up to a limit; arrow keys bring earlier prompts back.

A long paste is replaced by a placeholder; a path after @ names a file to attach.
"""

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.events import Key, Paste
from textual.message import Message
from textual.widgets import TextArea

from specchat.app.chat.attachments import is_long
from specchat.app.chat.tray import AttachmentTray, Unsent, begun, mention, mentions
from specchat.app.errors import AppError
from specchat.app.sanitize import clean_prompt, escape_controls
from specchat.app.storage.attachments import PASTE, Attachment
from specchat.app.ui import slash
from specchat.app.ui.first_prompts import FIRST_PROMPTS
from specchat.app.ui.keys import keys_of, registered

_NEWLINES = ("ctrl+j", "shift+enter", "alt+enter")
_IN_TURN = {
    "backspace": "delete_left", "delete": "delete_right", "left": "cursor_left", "right": "cursor_right",
    "home": "cursor_line_start", "end": "cursor_line_end",
}  # fmt: skip
"""Actions of keys that are often followed by text at once."""
TAKE_PATHS = ("/attach ", "/schema ")
"""Commands whose argument is a path."""
PLACEHOLDER = "Ask anything · ? lists the keys"
OFFERED = ("", *(prompt.text for prompt in FIRST_PROMPTS))
"""What tab goes through in the composer of an empty chat."""


class WrappedArea(TextArea):
    """Textual's, which wraps its lines anew when its width changes, but leaves what has been drawn of them before."""

    def on_resize(self) -> None:
        """Draw all lines again, once they are wrapped."""
        self.refresh()


class Composer(WrappedArea):
    """A text area of which enter sends the text; tab completes commands."""

    BINDINGS: ClassVar[list[BindingType]] = registered(
        "composer",
        Binding("enter", "send", "send", show=False),
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
        attachments: tuple[Attachment, ...] = ()
        """What is sent along with a prompt."""

    class HelpRequested(Message):
        """The user asked for help in an empty composer."""

    def __init__(self, **options: Any) -> None:
        super().__init__(placeholder=PLACEHOLDER, compact=True, highlight_cursor_line=False, **options)
        self._history: list[str] = []
        self._place = 0
        """Index of the shown prompt in the history; the length of the history while the user writes a new prompt."""
        self._unsent = ""
        self.words: slash.Words = {}
        """The values that slash commands accept."""
        self.offering = True
        """Whether tab puts in the first prompts, one after the other: in an empty chat."""
        self._completer = slash.Completer()
        self._helps = True  # whether the footer has the question mark
        self._marked: tuple[str, int] = ("", 0)
        """The text for which the user has moved through the menu, and the entry that was reached."""
        self.tray = AttachmentTray()
        """Texts of files and pastes that may be attached."""

    def remember(self, prompts: list[str]) -> None:
        """Begin with these earlier prompts."""
        self._history = list(prompts)
        self._place = len(self._history)

    def begin(self, text: str) -> None:
        """Show another text, instead of a recalled prompt and of the text before it."""
        self._place = len(self._history)
        self.load_text(text)
        self.move_cursor(self.document.end)

    def put(self, text: str) -> None:
        """Change the text, with the cursor at its end; this can be undone."""
        self.replace(text, (0, 0), self.document.end, maintain_selection_offset=False)

    @property
    def unsent(self) -> Unsent:
        """The text and its attachments; a recalled prompt, if it was changed, follows the text before it."""
        text = self.text
        if self._place < len(self._history):
            changed = text != self._history[self._place]
            text = "\n\n".join(filter(None, [self._unsent, text if changed else ""]))
        return text, self.tray.attached(text)

    def take_back(self, prompts: list[str]) -> None:
        """Put prompts that were not sent before the unsent text."""
        self.begin("\n\n".join(filter(None, [*prompts, self.unsent[0]])))

    def get_line(self, line_index: int) -> Text:
        """A line as it is drawn: what steers a terminal, or hides in it, is a visible sign."""
        line = super().get_line(line_index)
        line.plain = escape_controls(line.plain)
        return line

    def on_key(self, event: Key) -> None:
        """Enter, ^j and what moves the cursor do so in their turn: as bindings they would be overtaken by later keys.

        A question mark that begins a prompt asks for help.
        """
        if self._handle(event):
            event.prevent_default()
            event.stop()

    def check_consume_key(self, key: str, character: str | None = None) -> bool:
        """Whether the key is typed into the prompt: not the question mark that asks for help."""
        return super().check_consume_key(key, character) and (character != "?" or bool(self.text))

    def on_text_area_changed(self) -> None:
        """Show the key for help in the footer only where it works."""
        if bool(self.text) is self._helps:
            self._helps = not self.text
            self.screen.refresh_bindings()

    @property
    def menu(self) -> list[slash.Entry]:
        """The menu of slash commands for the text; empty without one, and for a recalled prompt."""
        recalled = self._place < len(self._history) and self.text == self._history[self._place]
        return slash.menu(self.text, self.words) if slash.is_command(self.text) and not recalled else []

    @property
    def marked(self) -> int | None:
        """The highlighted entry of the menu: of commands the first one until the user moves, of values none."""
        text, place = self._marked
        return place if text == self.text else None if " " in self.text else 0

    def _move(self, by: int) -> bool:
        """Highlight another entry of the menu; False if there is nothing to choose from."""
        places = [place for place, entry in enumerate(self.menu) if entry.line]
        if len(places) < 2:
            return False
        at = places.index(self.marked) if self.marked in places else -(by > 0)
        self._marked = self.text, places[(at + by) % len(places)]
        self.post_message(self.Changed(self))  # the menu is drawn for it
        return True

    def _chosen(self) -> str | None:
        """The line of the highlighted entry; None if the text is to be taken as it is."""
        entries, marked = self.menu, self.marked
        exact = self._marked[0] != self.text and self.text[1:].strip() in slash.BY_NAME
        return entries[marked].line if marked is not None and entries and not exact else None

    def _handle(self, event: Key) -> bool:
        """Act on a key; False leaves it to the base class."""
        if event.key != "tab":
            self._completer = slash.Completer()
        if event.key in keys_of(self.app, "composer.send"):
            self.action_send()
        elif event.key in keys_of(self.app, "composer.new-line"):
            self.action_newline()
        elif event.key in _IN_TURN:
            getattr(self, f"action_{_IN_TURN[event.key]}")()
        elif event.key == "tab" and self.path_begun is not None:
            if (path := self._completer.path(self.path_begun)) is not None:
                self._put_path(self.path_begun, *path)
        elif event.key == "tab" and slash.is_command(self.text):
            if self._marked[0] == self.text:
                self.put(self._chosen() or self.text)
            elif (line := self._completer.command(self.text, self.words)) is not None:
                self.put(line)
        elif event.key == "tab" and self.offering and self.text in OFFERED:
            self.put(OFFERED[(OFFERED.index(self.text) + 1) % len(OFFERED)])
        elif event.character == "?" and not self.text:
            self.post_message(self.HelpRequested())
        else:
            return False
        return True

    def on_paste(self, event: Paste) -> None:
        """Keep a long paste aside: its sign is drawn and edited at once, however long it is."""
        text = clean_prompt(event.text)
        if is_long(text):
            event.prevent_default()
            event.stop()
            self.replace(self.tray.paste(text), *self.selection, maintain_selection_offset=False)

    @property
    def path_begun(self) -> str | None:
        """The beginning of a path before the cursor; None where none is typed."""
        row, column = self.cursor_location
        before = self.document.get_line(row)[:column]
        if row == 0 and before.startswith(TAKE_PATHS):
            return before.partition(" ")[2]
        return None if slash.is_command(self.text) else begun(before)

    @property
    def attached(self) -> tuple[Attachment, ...]:
        """Attachments of the text that have been read."""
        return self.tray.attached(self.text)

    def detach(self, one: Attachment) -> None:
        """Take an attachment out of the text."""
        text, name = self.text, re.escape(one.name)
        found = re.finditer(name if one.kind == PASTE else f'@(?:"{name}"?|{name})', text)
        without = (text[: each.start()] + text[each.end() :] for each in found)
        self.put(min(without, key=lambda less: sum(one.name in names for names in mentions(less)), default=text))

    def action_send(self) -> None:
        """Send the text, or choose from the menu; it stays if an attachment that it names cannot be read."""
        if (line := self._chosen()) is not None:
            self.put(line)
            if " " not in line.strip() and slash.BY_NAME[line[1:].strip()].needs:
                return
        text = clean_prompt(self.text).strip()
        if not text:
            return
        try:
            attachments = () if slash.is_command(text) else self.tray.resolved(text)
        except AppError as error:
            self.notify(str(error), severity="error")
            return
        before = self._unsent if self._place < len(self._history) else ""
        self.remember([*(p for p in self._history if p != text), text])
        self.put(before)
        self.post_message(self.Sent(text, attachments))

    @property
    def _sign_before(self) -> str | None:
        """The sign of a paste that ends at the cursor."""
        row, column = self.cursor_location
        before = self.document.get_line(row)[:column]
        pastes = (one.name for one in self.attached if one.kind == PASTE) if before.endswith("]") else ()
        return next((sign for sign in pastes if before.endswith(sign) and self.selection.is_empty), None)

    def _put_path(self, typed: str, path: str, complete: bool) -> None:
        row, column = self.cursor_location
        before = self.document.get_line(row)[:column]
        if before.startswith(TAKE_PATHS):
            start, text = before.index(" ") + 1, path
        else:
            start, text = before.rindex("@", 0, len(before) - len(typed)), mention(path, complete=complete)
        self.replace(text, (row, start), (row, column))

    def action_delete_left(self) -> None:
        """Delete a character, or the whole sign of a paste."""
        if (sign := self._sign_before) is None:
            super().action_delete_left()
        else:
            row, column = self.cursor_location
            self.delete((row, column - len(sign)), (row, column))

    def action_newline(self) -> None:
        """Begin another line."""
        self.replace("\n", *self.selection, maintain_selection_offset=False)

    def action_earlier(self) -> None:
        """The menu's entry above; else a line up, and from the first one, the prompt before."""
        if self._move(-1):
            return
        if self._place > 0 and self.navigator.is_first_wrapped_line(self.cursor_location):
            if self._place == len(self._history):
                self._unsent = self.text
            self._show(self._place - 1)
        else:
            self.action_cursor_up()

    def action_later(self) -> None:
        """The menu's entry below; else a line down, and from the last one, the prompt after and then the unsent one."""
        if self._move(1):
            return
        if self._place < len(self._history) and self.navigator.is_last_wrapped_line(self.cursor_location):
            self._show(self._place + 1)
        else:
            self.action_cursor_down()

    def _show(self, place: int) -> None:
        self.put(self._history[place] if place < len(self._history) else self._unsent)
        self._place = place
