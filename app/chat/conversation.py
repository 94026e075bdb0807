"""A conversation: a tree of prompts (`Turn`) and replies, and the path through it that is shown and continued."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from uuid import uuid4

from specchat.app.chat.attachments import content_of
from specchat.app.chat.reply import Reply
from specchat.app.chat.titles import title_of
from specchat.app.settings.settings import THINKING, Settings
from specchat.app.storage.attachments import Attachment
from specchat.app.storage.store import Chat
from specchat.engine import FinishReason, Message, Request


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
    def reply_rows(self) -> tuple[int, ...]:
        """Rows of its replies in the store."""
        return tuple(reply.message_id for reply in self.replies if reply.message_id is not None)

    @property
    def counts(self) -> bool:
        """Whether the turn is part of the model's context: one that failed before its first token is not."""
        return self.reply is not None and (self.reply.has_text or self.reply.reason is not FinishReason.ERROR)


@dataclass(eq=False)
class Conversation:
    """A chat: the turns of one path through its tree. Other branches are in `Turn.versions` and `Turn.replies`."""

    chat: Chat | None = None
    """Its row in the store, once stored."""
    turns: list[Turn] = field(default_factory=list)
    """The path, from the first prompt on; waiting turns are at its end."""
    other_lane: Conversation | None = None
    """The conversation with the same prompts side by side whose chat and first prompt this one shares."""
    system: str | None = None
    """System prompt; None for that of the settings."""
    thinking: bool | str | None = None
    """Value of the template's thinking switch; None follows the settings."""
    every: list[Turn] = field(default_factory=list)
    """Every turn of the tree, in order of creation."""

    def __post_init__(self) -> None:
        self.every = self.every or list(self.turns)

    @property
    def running(self) -> Reply | None:
        """The first running reply of the path."""
        return next(iter(self.all_running), None)

    @property
    def all_running(self) -> list[Reply]:
        """All running replies to prompts of the path."""
        return [reply for turn in self.turns for reply in turn.replies if reply.running]

    @property
    def busy(self) -> list[Reply]:
        """All running replies of the tree."""
        return [reply for turn in self.every for reply in turn.replies if reply.running]

    @property
    def waiting(self) -> list[Turn]:
        """Turns of the path whose prompt waits to be sent."""
        return [turn for turn in self.turns if turn.reply is None]

    @property
    def title(self) -> str:
        """The chat's title, or its first words."""
        return (self.chat.title if self.chat else "") or self.first_words

    @property
    def first_words(self) -> str:
        """A title from the start of the first prompt, or from its attachments' names."""
        first = self.turns[0] if self.turns else Turn("")
        return title_of(first.prompt or ", ".join(each.name for each in first.attachments))

    def set_tokens(self, one: Attachment, tokens: int) -> list[Turn]:
        """Set the counted length of an attachment; return the turns of the path that have it."""
        same = [turn for turn in self.turns if any(each.is_same(one) for each in turn.attachments)]
        for turn in same:
            turn.attachments = tuple(
                replace(each, tokens=tokens) if each.is_same(one) else each for each in turn.attachments
            )
        return same

    def request(self, settings: Settings, turn: Turn) -> Request:
        """A request for a reply to a prompt of the path."""
        request = settings.with_thinking(self.thinking).request(uuid4().hex, self.messages(turn))
        return replace(request, stop_repeats=True)

    def requests(self, settings: Settings, turn: Turn) -> list[Request]:
        """A request for each wanted reply; a given seed counts up, otherwise the engine draws one for each."""
        seeds = [None if settings.seed is None else settings.seed + number for number in range(turn.wanted)]
        return [self.request(replace(settings, seed=seed), turn) for seed in seeds]

    def system_in(self, settings: Settings | None) -> str | None:
        """The system prompt: its own, or that of the settings."""
        return settings.system if self.system is None and settings is not None else self.system

    def thinks_in(self, settings: Settings | None) -> bool | str | None:
        """Value of the template's thinking switch: its own choice, or that of the settings."""
        return THINKING[settings.thinking] if self.thinking is None and settings is not None else self.thinking

    def messages(self, upto: Turn) -> tuple[Message, ...]:
        """The messages for a reply to this prompt of the path."""
        return self._messages(self.turns[: self.turns.index(upto)], upto.content)

    def messages_with(self, prompt: str, turns: int | None = None) -> tuple[Message, ...]:
        """The messages for a reply to a new prompt at the end of the path, or after this number of its turns."""
        return self._messages(self.turns[:turns], prompt)

    def messages_of(self, turn: Turn, reply: Reply) -> tuple[Message, ...]:
        """The messages that the model got for this reply to a prompt of the path."""
        messages = enumerate(self.messages(turn))
        return tuple(message for place, message in messages if place not in reply.left_out)

    def _messages(self, turns: Iterable[Turn], prompt: str) -> tuple[Message, ...]:
        messages = [Message("system", self.system)] if self.system else []
        for turn in turns:
            if turn.counts and turn.reply is not None:
                reply = Message("assistant", turn.reply.text, turn.reply.thinking)
                messages += [Message("user", turn.content), reply]
        return (*messages, Message("user", prompt))

    @property
    def left_out(self) -> frozenset[Turn]:
        """The turns of the path that did not fit into the context of the last reply."""
        asked = next((place for place in reversed(range(len(self.turns))) if self.turns[place].reply is not None), 0)
        reply = self.turns[asked].reply if self.turns else None
        if reply is None or not reply.left_out:
            return frozenset()
        counted = [turn for turn in self.turns[:asked] if turn.counts]
        first = 1 if self.system else 0
        return frozenset(turn for number, turn in enumerate(counted) if first + 2 * number in reply.left_out)

    def last_text(self) -> str:
        """The answer of the last reply that has text; otherwise empty."""
        answers = (turn.reply.text.strip() for turn in reversed(self.turns) if turn.reply is not None)
        return next(filter(None, answers), "")

    def turn_of(self, reply: Reply) -> Turn | None:
        """The turn of the path with this reply."""
        return next((turn for turn in self.turns if reply in turn.replies), None)

    def parent_row(self, turn: Turn) -> Callable[[], int | None]:
        """A function that returns the row before a prompt once that is stored.

        That is the reply that is shown now, or its prompt while it has no reply; None for the first prompt.
        """
        place = self.turns.index(turn)
        if not place:
            return lambda: None
        before = self.turns[place - 1]
        reply = before.reply
        return lambda: before.prompt_id if reply is None or reply.message_id is None else reply.message_id

    def append(self, turn: Turn) -> None:
        """Add a turn at the end of the path."""
        if self.turns:
            self.turns[-1].following[self.turns[-1].reply] = turn
        self.turns.append(turn)
        self.every.append(turn)

    def add_version(self, of: Turn, turn: Turn) -> None:
        """Continue with a new version of a prompt of the path; waiting prompts stay at the end."""
        turn.versions = of.versions
        of.versions.append(turn)
        self.every.append(turn)
        self._continue_with_waiting(self.turns.index(of), turn)

    def show_version(self, turn: Turn, number: int) -> Turn:
        """Continue with another version of a prompt of the path, by its number from 1."""
        version = turn.versions[number - 1]
        self._continue(self.turns.index(turn), version)
        return version

    def show_reply(self, turn: Turn, reply: Reply) -> None:
        """Continue with another reply to a prompt of the path; waiting prompts stay at the end."""
        turn.reply = reply
        self._continue_with_waiting(self.turns.index(turn), turn)

    def begin_reply(self, turn: Turn, reply: Reply) -> None:
        """Set the first reply to a prompt of the path; the prompt that waited for it follows it."""
        turn.reply = reply
        if (later := turn.following.pop(None, None)) is not None:
            turn.following[reply] = later

    def join(self, other: Conversation) -> None:
        """Take in the replies of the other lane, which follow the same first prompt, and what follows them."""
        for first, theirs in zip(self.turns[:1], other.turns, strict=False):
            first.replies = sorted(first.replies + theirs.replies, key=lambda reply: reply.message_id or 0)
            first.following |= theirs.following
            self.every += other.every[1:]
        self.other_lane = None
        self.name_models()

    def name_models(self) -> None:
        """Let each reply show its model if the replies come from several ones."""
        replies = [reply for turn in self.every for reply in turn.replies]
        several = len({reply.model for reply in replies if reply.model}) > 1
        for reply in replies:
            reply.names_model = several and bool(reply.model)

    def reveal(self, message_id: int) -> tuple[Turn | None, list[Turn | Reply]]:
        """Switch to the branch that contains this message; return its turn, and the newly chosen turns and replies."""
        rows = {turn.prompt_id: (turn, turn.reply) for turn in self.every}
        rows |= {reply.message_id: (turn, reply) for turn in self.every for reply in turn.replies}
        links = [(turn, reply, later) for turn in self.every for reply, later in turn.following.items()]
        before = {version: (turn, reply) for turn, reply, later in links for version in later.versions}
        changed: list[Turn | Reply] = []
        turn, reply = rows.get(message_id, (None, None))
        found = turn
        while turn is not None:
            if turn.reply is not reply and reply is not None:
                turn.reply = reply
                changed.append(reply)
            if turn not in before:
                if self.turns[0] is not turn:
                    changed.append(turn)
                self.turns = list(_path(turn))
                break
            later = turn
            turn, reply = before[later]
            if turn.following[reply] is not later:
                turn.following[reply] = later
                changed.append(later)
        return found, changed

    def drop_waiting(self) -> list[Turn]:
        """Remove the waiting prompts; return them in order."""
        waiting = self.waiting
        for turn in reversed(waiting):
            self.remove(turn)
        return waiting

    def remove(self, turn: Turn) -> None:
        """Remove a waiting turn; if it was a version of a prompt, continue with the last other version."""
        place = self.turns.index(turn)
        turn.versions.remove(turn)
        self.every.remove(turn)
        if turn.versions:
            self._continue(place, turn.versions[-1])
            return
        del self.turns[place:]
        self._unlink(turn)

    def _unlink(self, turn: Turn) -> None:
        """Let the turn follow no other one."""
        for other in self.every:
            other.following = {reply: later for reply, later in other.following.items() if later is not turn}

    def _continue_with_waiting(self, place: int, turn: Turn) -> None:
        """As `_continue`; the waiting prompts after this index move to the end of the new path."""
        waiting = [later for later in self.turns[place + 1 :] if later.reply is None]
        self._continue(place, turn)
        if waiting and waiting[0] not in self.turns:
            self._unlink(waiting[0])
            self.turns[-1].following[self.turns[-1].reply] = waiting[0]
            self.turns += waiting

    def _continue(self, place: int, turn: Turn) -> None:
        """Replace the path from this index on by the turn and what was last shown after it."""
        if place:
            self.turns[place - 1].following[self.turns[place - 1].reply] = turn
        self.turns[place:] = list(_path(turn))


def _path(turn: Turn | None) -> Iterator[Turn]:
    while turn is not None:
        yield turn
        turn = turn.following.get(turn.reply)
