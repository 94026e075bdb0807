"""Conversation of one chat: a tree of prompts and replies, and the path through it that is shown and continued."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from specchat.app.chat.attachments import content_of
from specchat.app.chat.reply import Reply
from specchat.app.storage.attachments import Attachment
from specchat.app.storage.store import Chat
from specchat.engine import FinishReason, Message

TITLE_LENGTH = 48


@dataclass(eq=False)
class Turn:
    """A prompt and the replies to it."""

    prompt: str
    reply: Reply | None = None
    """The reply that the path goes on with; None while the prompt waits to be sent."""
    replies: list[Reply] = field(default_factory=list)
    """Every reply there is to the prompt, oldest first."""
    wanted: int = 1
    """How many replies are asked for at first."""
    prompt_id: int | None = None
    """The prompt's row in the store, once it has one."""
    versions: list[Turn] = field(default_factory=list)
    """Every version of the prompt, this one among them, oldest first; shared by all of them."""
    following: dict[Reply | None, Turn] = field(default_factory=dict)
    """What was last shown behind each reply; behind None, what waits for the first one."""
    attachments: tuple[Attachment, ...] = ()
    """What was sent along with the prompt."""

    def __post_init__(self) -> None:
        if self.reply is not None and not self.replies:
            self.replies.append(self.reply)
        if not self.versions:
            self.versions.append(self)

    @property
    def content(self) -> str:
        """What the model gets: the prompt with everything that was sent along with it."""
        return content_of(self.prompt, self.attachments)

    @property
    def place(self) -> int:
        """Number of the reply that the path goes on with, from 1."""
        return next((n for n, reply in enumerate(self.replies, start=1) if reply is self.reply), 1)

    @property
    def version(self) -> int:
        """Number of this version of the prompt, from 1."""
        return next(n for n, turn in enumerate(self.versions, start=1) if turn is self)

    @property
    def counts(self) -> bool:
        """Whether the turn is part of the model's context: one that failed before its first token is not."""
        if self.reply is None:
            return False
        return self.reply.has_text or self.reply.reason is not FinishReason.ERROR


@dataclass(eq=False)
class Conversation:
    """A chat: the turns of one path through its tree. What is not on the path stays in `Turn.versions` and replies."""

    chat: Chat | None = None
    """Its row in the store, once it has one."""
    turns: list[Turn] = field(default_factory=list)
    """The path, from the first prompt on. Waiting turns are its end."""
    set_up: str = ""
    """How a lane answers that is compared with another one, in words; empty in a chat."""
    system: str | None = None
    """Instructions to the model, before the first prompt; None for those of the settings."""
    thinking: bool | None = None
    """Whether a model thinks whose chat template has a switch for that; None is as the settings have it."""
    every: list[Turn] = field(default_factory=list)
    """Every turn of the tree, in order of creation."""

    def __post_init__(self) -> None:
        self.every = self.every or list(self.turns)

    @property
    def running(self) -> Reply | None:
        """The first reply of the path that is being written."""
        return next(iter(self.all_running), None)

    @property
    def all_running(self) -> list[Reply]:
        """Every reply to a prompt of the path that is being written."""
        return [reply for turn in self.turns for reply in turn.replies if reply.running]

    @property
    def busy(self) -> list[Reply]:
        """Every reply that is being written, on the path or off it."""
        return [reply for turn in self.every for reply in turn.replies if reply.running]

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

    def drop_waiting(self) -> list[Turn]:
        """Remove the prompts that wait; gives them, in order."""
        waiting = self.waiting
        for turn in reversed(waiting):
            self.remove(turn)
        return waiting

    def set_tokens(self, one: Attachment, tokens: int) -> list[Turn]:
        """So many tokens were counted for a text; the turns of the path that it was sent along with."""
        same = [turn for turn in self.turns if any(each.is_same(one) for each in turn.attachments)]
        for turn in same:
            turn.attachments = tuple(
                replace(each, tokens=tokens) if each.is_same(one) else each for each in turn.attachments
            )
        return same

    def messages(self, upto: Turn) -> tuple[Message, ...]:
        """The messages that the model gets in order to answer `upto`."""
        return _messages(self.system, self.turns[: self.turns.index(upto)], upto.content)

    def messages_with(self, prompt: str) -> tuple[Message, ...]:
        """The messages that the model would get in order to answer this behind the last turn."""
        return _messages(self.system, self.turns, prompt)

    @property
    def left_out(self) -> frozenset[Turn]:
        """The turns of the path that the model was not told when it wrote the last reply: they did not fit."""
        asked = next((place for place in reversed(range(len(self.turns))) if self.turns[place].reply is not None), 0)
        reply = self.turns[asked].reply if self.turns else None
        if reply is None or not reply.left_out:
            return frozenset()
        told = [turn for turn in self.turns[:asked] if turn.counts]
        first = 1 if self.system else 0
        return frozenset(turn for number, turn in enumerate(told) if first + 2 * number in reply.left_out)

    def before(self, turn: Turn) -> Turn | None:
        """The turn before this one on the path; None before the first."""
        place = self.turns.index(turn)
        return self.turns[place - 1] if place else None

    def append(self, turn: Turn) -> None:
        """Go on with a turn at the end of the path."""
        if self.turns:
            self.turns[-1].following[self.turns[-1].reply] = turn
        self.turns.append(turn)
        self.every.append(turn)

    def add_version(self, of: Turn, turn: Turn) -> None:
        """Go on with another version of a prompt of the path; what stood there stays beside it."""
        turn.versions = of.versions
        of.versions.append(turn)
        self.every.append(turn)
        self._go_on(self.turns.index(of), turn)

    def show_version(self, turn: Turn, number: int) -> Turn:
        """Go on with the version of this number (from 1) of a prompt of the path, and what followed it."""
        version = turn.versions[number - 1]
        self._go_on(self.turns.index(turn), version)
        return version

    def show_reply(self, turn: Turn, reply: Reply) -> None:
        """Go on with another reply to a prompt of the path, and what followed it."""
        waiting = [later for later in self.turns[self.turns.index(turn) + 1 :] if later.reply is None]
        turn.reply = reply
        self._go_on(self.turns.index(turn), turn)
        if waiting and waiting[0] not in self.turns:
            self.turns[-1].following[self.turns[-1].reply] = waiting[0]
            self.turns += waiting

    def begin_reply(self, turn: Turn, reply: Reply) -> None:
        """The first reply to a prompt of the path: what waited for it follows it."""
        turn.reply = reply
        if (later := turn.following.pop(None, None)) is not None:
            turn.following[reply] = later

    def tell_models(self) -> None:
        """Where several models have answered, each reply says which one it came from."""
        replies = [reply for turn in self.every for reply in turn.replies]
        several = len({reply.model for reply in replies if reply.model}) > 1
        for reply in replies:
            reply.names_model = several and bool(reply.model)

    def reveal(self, message_id: int) -> tuple[Turn | None, list[Turn | Reply]]:
        """Let the path lead through the message with this row: its turn, and what it now goes on with instead."""
        rows = {turn.prompt_id: (turn, turn.reply) for turn in self.every}
        rows |= {reply.message_id: (turn, reply) for turn in self.every for reply in turn.replies}
        before = {
            version: (turn, reply)
            for turn in self.every
            for reply, later in turn.following.items()
            for version in later.versions
        }
        found: Turn | None = None
        changed: list[Turn | Reply] = []
        turn, reply = rows.get(message_id, (None, None))
        while turn is not None:
            found = found or turn
            if turn.reply is not reply and reply is not None:
                turn.reply = reply
                changed.append(reply)
            first, earlier = turn, before.get(turn)
            if earlier is None:
                if self.turns[0] is not first:
                    changed.append(first)
                self.turns = list(_path(first))
                break
            turn, reply = earlier
            if turn.following[reply] is not first:
                turn.following[reply] = first
                changed.append(first)
        return found, changed

    def remove(self, turn: Turn) -> None:
        """Forget a waiting turn; where it was a version of another prompt, go back to the last other one."""
        place = self.turns.index(turn)
        turn.versions.remove(turn)
        self.every.remove(turn)
        if turn.versions:
            self._go_on(place, turn.versions[-1])
            return
        del self.turns[place:]
        for other in self.every:
            other.following = {reply: later for reply, later in other.following.items() if later is not turn}

    def _go_on(self, place: int, turn: Turn) -> None:
        """From this place of the path on: this turn, and what was last shown behind it."""
        if place:
            self.turns[place - 1].following[self.turns[place - 1].reply] = turn
        self.turns[place:] = list(_path(turn))


def _path(turn: Turn | None) -> Iterator[Turn]:
    while turn is not None:
        yield turn
        turn = turn.following.get(turn.reply)


def _messages(system: str | None, turns: Iterable[Turn], prompt: str) -> tuple[Message, ...]:
    messages = [Message("system", system)] if system else []
    for turn in turns:
        if turn.counts and turn.reply is not None:
            messages += [Message("user", turn.content), Message("assistant", turn.reply.text)]
    return (*messages, Message("user", prompt))


def title_of(prompt: str) -> str:
    """A title for a chat that begins with this prompt: its first words."""
    words = " ".join(prompt.split())
    return words if len(words) <= TITLE_LENGTH else words[: TITLE_LENGTH - 1].rstrip() + "…"


def last_text(conversation: Conversation) -> str:
    """The text of the last reply that has any, without thinking; empty where none has."""
    replies = (turn.reply.answer.strip() for turn in reversed(conversation.turns) if turn.reply is not None)
    return next((text for text in replies if text), "")
