"""Chats as they are put into the store from a file."""

from __future__ import annotations

from dataclasses import dataclass

from specchat.app.storage.attachment import Attachment


@dataclass(frozen=True, slots=True)
class ImportedMessage:
    """A message; `parent` is the index of the one it follows."""

    role: str
    text: str
    parent: int | None
    chosen: bool = True
    lines: tuple[str, ...] = ()
    """Trace lines that make up the text; none where nothing is known of its tokens."""
    reason: str | None = None
    attachments: tuple[Attachment, ...] = ()


@dataclass(frozen=True, slots=True)
class ImportedChat:
    """A chat with its messages, each behind the one it follows."""

    title: str
    messages: tuple[ImportedMessage, ...]
    system: str = ""
