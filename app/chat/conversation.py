"""Conversation of one chat: prompts and the replies to them, in order."""

from __future__ import annotations

from dataclasses import dataclass, field

from specchat.app.chat.reply import Reply, Stage, stored_reply
from specchat.app.storage.store import Chat, StoredMessage
from specchat.engine import FinishReason, Message

TITLE_LENGTH = 48


@dataclass(eq=False)
class Turn:
    """A prompt and the reply to it."""

    prompt: str
    reply: Reply | None = None
    """None while the prompt waits to be sent."""
    candidates: list[Reply] = field(default_factory=list)
    """All replies to the prompt where several were asked for; `reply` is the one that continues the chat."""
    wanted: int = 1
    """How many replies are asked for."""
    prompt_id: int | None = None
    """The prompt's row in the store, once it has one."""

    @property
    def replies(self) -> list[Reply]:
        """Every reply there is to the prompt."""
        return self.candidates or ([self.reply] if self.reply else [])

    @property
    def place(self) -> int:
        """Number of the candidate that continues the chat, from 1."""
        return next((n for n, reply in enumerate(self.candidates, start=1) if reply is self.reply), 1)

    @property
    def counts(self) -> bool:
        """Whether the turn is part of the model's context: one that failed before its first token is not."""
        if self.reply is None:
            return False
        return bool(self.reply.text) or self.reply.reason is not FinishReason.ERROR


@dataclass(eq=False)
class Conversation:
    """The turns of one chat."""

    chat: Chat | None = None
    """Its row in the store, once it has one."""
    turns: list[Turn] = field(default_factory=list)
    set_up: str = ""
    """How a lane answers that is compared with another one, in words; empty in a chat."""

    @property
    def running(self) -> Reply | None:
        """The first reply that is being written."""
        return next(iter(self.all_running), None)

    @property
    def all_running(self) -> list[Reply]:
        """Every reply that is being written."""
        return [reply for turn in self.turns for reply in turn.replies if reply.running]

    @property
    def waiting(self) -> list[Turn]:
        """Turns whose prompt waits to be sent."""
        return [turn for turn in self.turns if turn.reply is None]

    @property
    def title(self) -> str:
        """The chat's own title, else the beginning of its first prompt and the set-up, if any."""
        if self.chat and self.chat.title:
            return self.chat.title
        title = title_of(self.turns[0].prompt) if self.turns else ""
        return f"{title} · {self.set_up}" if self.set_up and title else title

    def messages(self, upto: Turn) -> tuple[Message, ...]:
        """The messages that the model gets in order to answer `upto`."""
        messages: list[Message] = []
        for turn in self.turns[: self.turns.index(upto)]:
            if turn.counts and turn.reply is not None:
                messages += [Message("user", turn.prompt), Message("assistant", turn.reply.text)]
        return (*messages, Message("user", upto.prompt))


def title_of(prompt: str) -> str:
    """A title for a chat that begins with this prompt: its first words."""
    words = " ".join(prompt.split())
    return words if len(words) <= TITLE_LENGTH else words[: TITLE_LENGTH - 1].rstrip() + "…"


def last_text(conversation: Conversation) -> str:
    """The text of the last reply that has any; empty where none has."""
    replies = (turn.reply.text.strip() for turn in reversed(conversation.turns) if turn.reply is not None)
    return next((text for text in replies if text), "")


def stored_conversation(chat: Chat, messages: list[StoredMessage]) -> Conversation:
    """The conversation as it was stored. A prompt without a reply was interrupted before its first word."""
    conversation = Conversation(chat)
    prompts: dict[int, Turn] = {}
    for message in messages:
        if message.role == "user":
            prompts[message.id] = Turn(message.content, prompt_id=message.id)
            conversation.turns.append(prompts[message.id])
        elif message.role == "assistant" and conversation.turns:
            turn = conversation.turns[-1] if message.answers is None else prompts[message.answers]
            reply = stored_reply(message.content, message.finish_reason, message.events)
            reply.message_id = message.id
            turn.candidates.append(reply)
            if message.chosen or turn.reply is None:
                turn.reply = reply
    for turn in conversation.turns:
        turn.wanted = max(len(turn.candidates), 1)
        if len(turn.candidates) == 1:
            turn.candidates = []
    for turn in conversation.waiting:
        turn.reply = Reply()
        turn.reply.stage = Stage.INTERRUPTED
    return conversation
