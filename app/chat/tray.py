"""What is being written: attachments of the prompt (files named by @NAME, long pastes), and the text of every chat."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from specchat.app.chat.attachments import file_attachment, paste_attachment
from specchat.app.chat.conversation import Conversation
from specchat.app.errors import AppError, UsageError
from specchat.app.storage.attachments import FILE, PASTE, Attachment

MOST = 200
"""Maximum number of offered names."""
_MENTION = re.compile(r'(?<![^\s(\[{<"\'])@(?:"([^"\n]+)(?:"|$)|([^\s"]+))', re.MULTILINE)
_BEGUN = re.compile(r'(?<![^\s(\[{<"\'])@(?:"([^"\n]*)|([^\s"]*))$')
_PUNCTUATION = ".,;:!?)]}>'"
"""Characters after a name that do not belong to it."""
_Stamp = tuple[int, int] | None
"""Time of the last change in ns, and size; None for a missing file."""


def mentions(text: str) -> Iterator[tuple[str, ...]]:
    """The possible names of each mention, likeliest first: with the punctuation after it, and without."""
    for found in _MENTION.finditer(text):
        quoted, plain = found.groups()
        if quoted is not None:
            yield (quoted,)
        else:
            yield tuple(dict.fromkeys((plain, plain.rstrip(_PUNCTUATION))))


def mention(name: str, *, complete: bool = True) -> str:
    """A name as it is written in a prompt; without the closing quote unless complete."""
    if not re.search(r"\s", name):
        return f"@{name}"
    return f'@"{name}"' if complete else f'@"{name}'


def begun(before: str) -> str | None:
    """The name of a mention that ends at the cursor; otherwise None. `before` is the text up to the cursor."""
    found = _BEGUN.search(before)
    return None if found is None else found[1] if found[1] is not None else found[2]


def completions(name: str) -> list[str]:
    """Paths that start with this one, folders with a slash at the end; hidden ones only if the dot is typed."""
    head, tail = name[: name.rfind("/") + 1], name[name.rfind("/") + 1 :]
    try:
        with os.scandir(Path(head or ".").expanduser()) as entries:
            names = ((entry.name, entry.is_dir()) for entry in entries if entry.name.startswith(tail))
            dotted = tail.startswith(".")
            found = [f"{head}{name}{'/' * folder}" for name, folder in names if name.startswith(".") is dotted]
    except (OSError, ValueError, RuntimeError):  # no such folder, no such user
        return []
    return sorted(found, key=lambda path: (path.endswith("/"), path))[:MOST]


class AttachmentTray:
    """The known files and pastes by name. The text of the prompt decides which of them are attached."""

    def __init__(self) -> None:
        self._known: dict[str, Attachment] = {}
        self._read: dict[str, _Stamp] = {}
        """Stamp of each file when it was read."""
        self.refused: dict[str, str] = {}
        """Error message for each file that cannot be attached."""

    def hold(self, attachments: Iterable[Attachment]) -> None:
        """Replace the known files by new ones. Known pastes stay, since an earlier prompt may be recalled."""
        pastes = {name: one for name, one in self._known.items() if one.kind == PASTE}
        self._known = pastes | {one.name: one for one in attachments}
        self._read, self.refused = {}, {}

    def know(self, attachments: Iterable[Attachment]) -> None:
        """Add the pastes of earlier prompts."""
        self._known |= {one.name: one for one in attachments if one.kind == PASTE}

    def paste(self, text: str) -> str:
        """Add a long paste and return its placeholder."""
        same = next((one for one in self._known.values() if one.kind == PASTE and one.text == text), None)
        one = same or paste_attachment(text, self._known)
        self._known[one.name] = one
        return one.name

    def attached(self, text: str) -> tuple[Attachment, ...]:
        """The known attachments of a prompt, without reading files."""
        named = [next((n for n in names if n in self._known), "") for names in mentions(text)]
        files = [self._known[name] for name in dict.fromkeys(named) if name and self._known[name].kind == FILE]
        return (*files, *(one for one in self._known.values() if one.kind == PASTE and one.name in text))

    def look(self, text: str) -> None:
        """Read new and changed files that the prompt names; errors are in `refused`."""
        refused = {}
        for names in mentions(text):
            try:
                self._take(names)
            except AppError as error:
                refused[names[-1]] = str(error)
        self.refused = refused

    def resolved(self, text: str) -> tuple[Attachment, ...]:
        """The attachments to send with a prompt, with the current content of its files.

        Raises:
            UsageError: a named file cannot be read, is not text, or was removed after it was named.
        """
        for names in mentions(text):
            self._take(names)
        return tuple(replace(one, path="") for one in self.attached(text))

    def set_tokens(self, one: Attachment, tokens: int) -> None:
        """Set the counted length of an attachment."""
        known = self._known.get(one.name)
        if known is not None and known.text == one.text:
            self._known[one.name] = replace(known, tokens=tokens)

    def _take(self, names: tuple[str, ...]) -> None:
        """Read the first of these names that is a file, if it is new or has changed."""
        known = next((self._known[name] for name in names if name in self._known), None)
        if known is not None and not known.path:  # of a prompt that was sent before
            return
        for name in [known.name] if known is not None else names:
            path = Path(known.path if known is not None else os.path.expanduser(name))
            stamp = _stamp(path)
            if stamp is None and known is not None:
                raise UsageError(f"{name} is gone: bring it back, or take @{name} out of the prompt")
            if stamp is None or path.is_dir():
                continue
            if known is None or self._read.get(name) != stamp:
                read = file_attachment(name, path)
                same = known is not None and known.text == read.text
                self._known[name] = replace(read, tokens=known.tokens if same and known else None)
                self._read[name] = stamp
            return


def _stamp(path: Path) -> _Stamp:
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_size


NO_CHAT = 0
"""Id of the chat that has no prompt yet."""
Attachments = tuple[Attachment, ...]
Unsent = tuple[str, Attachments]
"""A text and its attachments."""
_NOTHING: Unsent = "", ()


def joined(first: Unsent, second: Unsent) -> Unsent:
    """Both texts with a blank line between them, or the second if it contains the first; and all attachments."""
    before = "" if first[0].strip() in second[0] else first[0]
    return "\n\n".join(filter(None, (before, second[0]))), tuple(dict.fromkeys((*first[1], *second[1])))


class UnsentTexts:
    """A text with its attachments for each chat, and which of them have changed since they were stored."""

    def __init__(self) -> None:
        self._texts: dict[int, Unsent] = {}
        self._stored: dict[int, Unsent] = {}
        self._last: tuple[Conversation, int] | None = None
        """The conversation whose text was kept last, and its chat at that time."""
        self._hidden: Unsent = _NOTHING
        """Another text of that chat, which is not in the composer."""

    def fill(self, stored: Mapping[int, str], attachments: Mapping[int, Attachments]) -> None:
        """Take over the texts of an earlier run, before new ones of the same chats."""
        self._stored = {chat: (stored.get(chat, ""), attachments.get(chat, ())) for chat in {*stored, *attachments}}
        if self._last is not None and self._texts[self._last[1]][0]:
            self._hidden = self._stored.get(self._last[1], _NOTHING)
        self._texts |= {chat: joined(text, self._texts.get(chat, _NOTHING)) for chat, text in self._stored.items()}

    def of(self, conversation: Conversation) -> Unsent:
        """The text of a conversation, with its attachments."""
        return self._texts.get(_chat(conversation), _NOTHING)

    def keep(self, conversation: Conversation, text: str, attachments: Attachments = ()) -> None:
        """Set the text of a conversation; it moves along when the conversation gets a chat, or loses it.

        A text that its new chat has already stays, before it.
        """
        chat = _chat(conversation)
        if self._last is None or self._last[0] is not conversation:
            self._hidden = _NOTHING
        elif self._last[1] != chat:
            self._texts[self._last[1]], self._hidden = self._hidden, self._texts.get(chat, _NOTHING)
        self._last = conversation, chat
        self._texts[chat] = joined(self._hidden, (text, attachments))

    def changes(self) -> Iterator[tuple[int, str, Attachments | None]]:
        """Chats whose text or attachments have changed, which then count as stored.

        Attachments, which may be long, are None if they have not changed.
        """
        for chat, unsent in self._texts.items():
            stored = self._stored.get(chat, _NOTHING)
            if unsent != stored:
                self._stored[chat] = unsent
                yield chat, unsent[0], unsent[1] if unsent[1] != stored[1] else None


def _chat(conversation: Conversation) -> int:
    return conversation.chat.id if conversation.chat else NO_CHAT
