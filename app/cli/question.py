"""The question of `specchat ask`, and the stored chat that it continues or begins."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from specchat.app.chat.archive import Archive
from specchat.app.chat.attachments import content_of, file_attachment
from specchat.app.chat.constraints import constraint_of
from specchat.app.chat.conversation import Conversation, Prompt
from specchat.app.chat.reply import Reply
from specchat.app.chat.stored_conversation import stored_conversation
from specchat.app.cli.progress import warn
from specchat.app.errors import AppError, UsageError
from specchat.app.paths import config_folder, database_file
from specchat.app.sanitize import clean_prompt
from specchat.app.settings.named_files import NamedTexts, filled
from specchat.app.settings.settings import Settings
from specchat.app.storage.attachments import Attachment
from specchat.app.storage.store import Chat, Store
from specchat.engine import Admitted, Event, Finished, Message, MessagePart, Request, Round, Totals

NO_BREAKERS = ("none",)
LONGEST_INPUT = 16 << 20
"""Bytes of stdin that are read: far more than any context holds."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question as the command line gives it."""

    text: str | None
    system: str | None = None
    stop: tuple[str, ...] = ()
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Token ids, and what is added to their logits."""
    dry_sequence_breakers: tuple[str, ...] | None = None
    """Sequence breakers of DRY; None for the usual ones, `NO_BREAKERS` for none."""
    stop_repeats: bool = False
    """Whether a reply that repeats itself ends."""
    schema: str | None = None
    json_object: bool = False
    regex: str | None = None
    grammar: str | None = None
    choice: tuple[str, ...] = ()
    """What the reply has to follow, as for `constraint_of`."""
    files: tuple[Path, ...] = ()
    """Text files that the model gets before the question, each under its name."""
    template: str | None = None
    values: tuple[str, ...] = ()
    """NAME=VALUE for the template's variables."""
    chat: str | None = None
    """Part of the title of the chat to continue."""
    newest: bool = False
    """Whether to continue the newest chat."""
    save: bool = False
    """Whether to store a new chat."""
    show_thinking: bool = False
    """Whether thinking is printed as part of the reply."""

    def instructions(self) -> str:
        """The system prompt."""
        return clean_prompt(self.system or "").strip()

    def prompt(self) -> str:
        """The template, the question and the text on stdin.

        Raises:
            AppError: there is no question and no file, or the template cannot be read.
        """
        parts = [self._filled_template(), clean_prompt(self.text or ""), clean_prompt(_read_stdin())]
        content = "\n\n".join(part for part in parts if part.strip())
        if not content and not self.files:
            raise UsageError('there is nothing to ask: give a question, specchat ask "…", or text on stdin')
        return content

    def attachments(self) -> tuple[Attachment, ...]:
        """The files.

        Raises:
            UsageError: one cannot be read, is not text, or is too long.
        """
        return tuple(replace(file_attachment(str(path), path), name=path.name, path="") for path in self.files)

    def messages(self, prompt: str, attachments: Sequence[Attachment]) -> tuple[Message, ...]:
        """The instructions, if any, and the question with its files."""
        system, question = self.instructions(), Message("user", content_of(prompt, attachments))
        return (*((Message("system", system),) if system else ()), question)

    def request(self, settings: Settings, messages: tuple[Message, ...]) -> Request:
        """The request with these messages."""
        request = settings.request("ask", messages, tuple(clean_prompt(text) for text in self.stop))
        sampling = replace(request.sampling, logit_bias=self.logit_bias)
        if self.dry_sequence_breakers is not None:
            breakers = () if self.dry_sequence_breakers == NO_BREAKERS else self.dry_sequence_breakers
            sampling = replace(sampling, dry_sequence_breakers=breakers)
        constraint = constraint_of(self.schema, self.json_object, self.regex, self.grammar, self.choice)
        return replace(request, sampling=sampling, stop_repeats=self.stop_repeats, constraint=constraint)

    def stored_turn(self) -> StoredTurn | None:
        """The place in a chat where question and reply are stored; None if they are not.

        Raises:
            AppError: there is no such chat, or the store cannot be opened.
        """
        if self.chat is not None and self.newest:
            raise UsageError("--chat and --continue name two chats: leave one of them out")
        continued = self.chat is not None or self.newest
        if not continued and not self.save:
            return None
        if continued and self.system:
            raise UsageError("--system goes with a new chat: this one has its own, change it in the app with /system")
        store = Store(database_file())
        chat = find_chat(store, self.chat) if continued else None
        warn(store.notice)
        return StoredTurn(store, chat, self.instructions())

    def _filled_template(self) -> str:
        if self.template is None:
            if self.values:
                raise UsageError(f"--var {self.values[0]} goes with a template: name one with --template")
            return ""
        values = dict(value.partition("=")[::2] for value in self.values)
        return filled(NamedTexts(config_folder() / "templates", "template").read(self.template), values)


def _read_stdin() -> str:
    """The text on stdin; empty if stdin is a terminal."""
    if sys.stdin is None or sys.stdin.isatty():
        return ""
    data = sys.stdin.buffer.read(LONGEST_INPUT + 1)
    if len(data) > LONGEST_INPUT:
        raise UsageError(f"the text on stdin is longer than {LONGEST_INPUT >> 20} MiB: no context holds that")
    return data.decode("utf-8-sig", "replace")  # PowerShell begins with a byte order mark


class StoredTurn:
    """A prompt and the reply to it in a stored chat. Each round is stored before it is printed.

    Args:
        store: Contains the chat.
        chat: The chat; None begins one.
        system: Instructions to the model, for a new chat.
    """

    def __init__(self, store: Store, chat: Chat | None, system: str = "") -> None:
        self._archive = Archive(store, _fail)
        stored = chat and stored_conversation(chat, store.messages(chat.id))
        self._conversation = stored or Conversation(system=system)
        self._reply = Reply()

    @property
    def thinking(self) -> bool | str | None:
        """Value of the thinking switch in this chat; None if the settings decide."""
        return self._conversation.thinking

    def messages(self, prompt: str, attachments: tuple[Attachment, ...] = ()) -> tuple[Message, ...]:
        """The chat so far, and the prompt with its attachments."""
        self._prompt = Prompt(prompt, attachments)
        self._conversation.append(self._prompt)
        return self._conversation.messages(self._prompt)

    def begin(self, model: str) -> None:
        """Store the prompt, and an empty reply of a model, as the settings or the server name it."""
        conversation, prompt = self._conversation, self._prompt
        self._reply.model = model
        self._archive.prompt(conversation, prompt).result()
        conversation.begin_replies(prompt, [self._reply])
        self._archive.begin(conversation, prompt, [self._reply]).result()

    def follow(self, results: tuple[MessagePart, ...]) -> None:
        """Store the results of the calls of the reply, and an empty reply to them."""
        model = self._reply.model
        self._prompt, self._reply = Prompt("", results=results), Reply()
        self._conversation.append(self._prompt)
        self.begin(model)

    def add(self, event: Event) -> None:
        """Store an event of the reply."""
        if isinstance(event, Admitted | Round | Totals | Finished):
            self._archive.append([(self._reply, [event])]).result()


def _fail(sentence: str) -> None:
    raise AppError(sentence)


def find_chat(store: Store, title: str | None) -> Chat:
    """The newest chat with this text in its title; a chat whose whole title it is comes first. None: the newest chat.

    Raises:
        UsageError: there is none; a damaged file is named.
    """
    chats = sorted(store.chats(), key=lambda chat: -chat.updated_at)
    if not chats:
        raise UsageError(store.notice or "there are no chats yet: specchat begins one")
    if title is None:
        return chats[0]
    wanted = title.casefold()
    matching = [chat for chat in chats if wanted in chat.title.casefold()]
    if not matching:
        raise UsageError(f"no chat has {title!r} in its title: specchat export --list shows all titles")
    return next((chat for chat in matching if chat.title.casefold() == wanted), matching[0])
