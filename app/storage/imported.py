"""Chats that are added to the store from a file."""

from __future__ import annotations

from dataclasses import dataclass

from specchat.app.storage.attachments import Attachment


@dataclass(frozen=True, slots=True)
class ImportedMessage:
    """A message; `parent` is the index of the message before it."""

    role: str
    text: str
    parent: int | None
    chosen: bool = True
    lines: tuple[str, ...] = ()
    """Trace lines of the text; empty where its tokens are unknown."""
    reason: str | None = None
    attachments: tuple[Attachment, ...] = ()


@dataclass(frozen=True, slots=True)
class ImportedChat:
    """A chat with its messages, each after its parent."""

    title: str
    messages: tuple[ImportedMessage, ...]
    system: str = ""
