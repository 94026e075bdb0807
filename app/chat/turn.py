"""A prompt of a conversation and the replies to it."""

from __future__ import annotations

from dataclasses import dataclass, field

from specchat.app.chat.attachments import content_of
from specchat.app.chat.reply import Reply
from specchat.app.storage.attachments import Attachment
from specchat.engine import FinishReason

TITLE_LENGTH = 48


@dataclass(eq=False)
class Turn:
    """A prompt and the replies to it."""

    prompt: str
    reply: Reply | None = None
    """The reply that the path continues with; None while the prompt waits to be sent."""
    replies: list[Reply] = field(default_factory=list)
    """All replies to the prompt, oldest first."""
    wanted: int = 1
    """Number of replies to request when it is sent."""
    prompt_id: int | None = None
    """The prompt's row in the store, once stored."""
    versions: list[Turn] = field(default_factory=list)
    """All versions of the prompt including this one, oldest first; one list shared by all of them."""
    following: dict[Reply | None, Turn] = field(default_factory=dict)
    """The turn last shown after each reply; after None, the turn that waits for the first reply."""
    attachments: tuple[Attachment, ...] = ()

    def __post_init__(self) -> None:
        if self.reply is not None and not self.replies:
            self.replies.append(self.reply)
        if not self.versions:
            self.versions.append(self)

    @property
    def content(self) -> str:
        """The text for the model: the prompt with its attachments."""
        return content_of(self.prompt, self.attachments)

    @property
    def place(self) -> int:
        """Number of the reply that the path continues with, from 1."""
        return next((n for n, reply in enumerate(self.replies, start=1) if reply is self.reply), 1)

    @property
    def version(self) -> int:
        """Number of this version of the prompt, from 1."""
        return next(n for n, turn in enumerate(self.versions, start=1) if turn is self)

    @property
    def counts(self) -> bool:
        """Whether the turn is part of the model's context: one that failed before its first token is not."""
        return self.reply is not None and (self.reply.has_text or self.reply.reason is not FinishReason.ERROR)


def title_of(prompt: str) -> str:
    """A title for a chat that starts with this prompt: its first words."""
    words = " ".join(prompt.split())
    return words if len(words) <= TITLE_LENGTH else words[: TITLE_LENGTH - 1].rstrip() + "…"
