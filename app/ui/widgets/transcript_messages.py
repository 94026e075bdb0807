"""Messages of a transcript: what a click or a key in it requests from the screen and the app."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from textual.message import Message

from specchat.app.chat.reply import Reply
from specchat.app.chat.turn import Turn
from specchat.app.storage.attachments import Attachment
from specchat.app.ui.rendering.block import TurnOrReply
from specchat.app.ui.rendering.token_cursor import Spot


@dataclass
class CopyRequested(Message, namespace="transcript"):
    """Copy this reply."""

    reply: Reply


@dataclass
class CodeRequested(Message, namespace="transcript"):
    """Copy a code block of this reply, by its number from 1."""

    reply: Reply
    number: int


@dataclass
class LinkRequested(Message, namespace="transcript"):
    """Open what a link of a reply leads to."""

    address: str


@dataclass
class TokenSelected(Message, namespace="transcript"):
    """The user selected this token, by key or by mouse."""

    spot: Spot


@dataclass
class ForkRequested(Message, namespace="transcript"):
    """Take another way at this token."""

    spot: Spot


@dataclass
class VersionRequested(Message, namespace="transcript"):
    """Show another version of a prompt, or another reply to it."""

    turn: Turn
    of_reply: bool
    step: int


@dataclass
class AttachmentRequested(Message, namespace="transcript"):
    """Open what was sent along with a prompt."""

    attachment: Attachment


def requested_message(
    parts: Sequence[TurnOrReply], name: str, identity: int, details: tuple[Any, ...] = ()
) -> Message | None:
    """What a click on a mark asks for.

    Args:
        parts: The prompts and replies that are shown.
        name: "version" (whether it is the reply's, a step), "attachment" (its place), "copy", or "code" (its number).
        identity: `id` of the prompt or reply with the mark.
        details: Those in brackets.

    Returns:
        None if that is no longer shown.
    """
    match name, next((part for part in parts if id(part) == identity), None):
        case "version", Turn() as turn:
            return VersionRequested(turn, *details)
        case "attachment", Turn() as turn:
            return AttachmentRequested(turn.attachments[details[0]])
        case "copy", Reply() as reply:
            return CopyRequested(reply)
        case "code", Reply() as reply:
            return CodeRequested(reply, *details)
    return None
