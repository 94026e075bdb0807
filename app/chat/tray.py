"""What is attached to the prompt that is being written: files that it names, and long pastes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from specchat.app.chat.attachments import file_attachment, paste_attachment
from specchat.app.chat.mentions import mentions
from specchat.app.errors import AppError, UsageError
from specchat.app.storage.attachments import FILE, PASTE, Attachment

_Stamp = tuple[int, int] | None
"""Time of the last change in ns, and size; None of a file that is gone."""


class AttachmentTray:
    """Knows the texts of files and pastes by their names; which of them are attached, the prompt's own text says."""

    def __init__(self) -> None:
        self._known: dict[str, Attachment] = {}
        self._read: dict[str, _Stamp] = {}
        """What a file was like when it was read."""
        self.refused: dict[str, str] = {}
        """Files that cannot be attached, and why."""

    def hold(self, attachments: Iterable[Attachment]) -> None:
        """Begin with these files; pastes that were known stay known, as an earlier prompt may come back."""
        pastes = {name: one for name, one in self._known.items() if one.kind == PASTE}
        self._known = pastes | {one.name: one for one in attachments}
        self._read, self.refused = {}, {}

    def know(self, attachments: Iterable[Attachment]) -> None:
        """Pastes that earlier prompts have."""
        self._known |= {one.name: one for one in attachments if one.kind == PASTE}

    def paste(self, text: str) -> str:
        """Keep a long paste; the sign that stands for it."""
        same = next((one for one in self._known.values() if one.kind == PASTE and one.text == text), None)
        one = same or paste_attachment(text, self._known)
        self._known[one.name] = one
        return one.name

    def attached(self, text: str) -> tuple[Attachment, ...]:
        """What this prompt has, of what is known; reads nothing."""
        named = [next((n for n in names if n in self._known), "") for names in mentions(text)]
        files = [self._known[name] for name in dict.fromkeys(named) if name and self._known[name].kind == FILE]
        return (*files, *(one for one in self._known.values() if one.kind == PASTE and one.name in text))

    def look(self, text: str) -> None:
        """Read the files that the prompt names, where they are new or have changed; what cannot be read is refused."""
        refused = {}
        for names in mentions(text):
            try:
                self._take(names)
            except AppError as error:
                refused[names[-1]] = str(error)
        self.refused = refused

    def resolved(self, text: str) -> tuple[Attachment, ...]:
        """What is sent along with this prompt: files as they now are.

        Raises:
            UsageError: a file that it names cannot be read, is no text, or has gone since it was named.
        """
        for names in mentions(text):
            self._take(names)
        return tuple(replace(one, path="") for one in self.attached(text))

    def set_tokens(self, one: Attachment, tokens: int) -> None:
        """So many tokens were counted for this."""
        known = self._known.get(one.name)
        if known is not None and known.text == one.text:
            self._known[one.name] = replace(known, tokens=tokens)

    def _take(self, names: tuple[str, ...]) -> None:
        """Read a file if it is one, and not read yet as it now is."""
        known = next((self._known[name] for name in names if name in self._known), None)
        if known is not None and not known.path:  # of a prompt that was sent before
            return
        for name in [known.name] if known is not None else names:
            path = Path(known.path) if known is not None else _path(name)
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


def _path(name: str) -> Path:
    try:
        return Path(name).expanduser()
    except RuntimeError:  # no such user
        return Path(name)


def _stamp(path: Path) -> _Stamp:
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_size
