"""A conversation: a tree of prompts and replies, and the path to its selected leaf, which is shown and continued."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, InitVar, dataclass, field, replace
from typing import TYPE_CHECKING, Self
from uuid import uuid4

from specchat.app.chat.attachments import content_of
from specchat.app.chat.reply import Reply
from specchat.app.chat.titles import title_of
from specchat.app.chat.tool_calls import Decisions, with_results
from specchat.app.chat.tree import Node
from specchat.app.settings.settings import THINKING, Settings
from specchat.app.storage.attachments import Attachment
from specchat.app.storage.store import Chat
from specchat.engine import Constraint, FinishReason, Message, PartKind, Request, Tool, message_parts

if TYPE_CHECKING:
    from specchat.app.sources.tool_client import ToolClient


@dataclass(eq=False, repr=False)
class Prompt(Node):
    """What the user sends, or the results of the calls in the reply before. The replies to it are its children."""

    text: str
    """The text as it was typed."""
    attachments: tuple[Attachment, ...] = ()
    wanted: int = field(default=1, kw_only=True)
    """Number of replies to request when it is sent."""

    @classmethod
    def of(cls, message: Message) -> Self:
        """The prompt of a message."""
        return cls(message.content, results=message.parts_of(PartKind.RESULT))

    @property
    def content(self) -> str:
        """The text for the model, which includes the attachments."""
        return content_of(self.text, self.attachments)

    @property
    def as_message(self) -> Message:
        """The message for the model."""
        return Message("user", parts=(*self.results, *message_parts(self.content)))

    @property
    def reply(self) -> Reply | None:
        """The reply that the path continues with; None while the prompt waits to be sent."""
        return self.shown if isinstance(self.shown, Reply) else None

    @property
    def named_parts(self) -> list[tuple[str, Prompt | Reply]]:
        """The prompt and its shown reply, if any, with what they are called."""
        return [("prompt", self), *([("reply", self.reply)] if self.reply is not None else [])]

    @property
    def replies(self) -> list[Reply]:
        """All replies, oldest first."""
        return [child for child in self.children if isinstance(child, Reply)]

    @property
    def reply_rows(self) -> tuple[int, ...]:
        """Rows of the replies in the store."""
        return tuple(reply.row for reply in self.replies if reply.row is not None)

    @property
    def in_context(self) -> bool:
        """Whether it is part of the model's context: it is not if its reply failed before the first token."""
        if self.reply is None:
            return False
        return bool(self.results) or self.reply.has_text or self.reply.reason is not FinishReason.ERROR


@dataclass(eq=False, repr=False)
class Conversation:
    """A chat."""

    chat: Chat | None = None
    """Its row in the store; None before it is stored."""
    path: InitVar[Iterable[Prompt | Reply]] = ()
    """The first messages."""
    _: KW_ONLY
    system: str | None = None
    """System prompt; None for that of the settings."""
    thinking: bool | str | None = None
    """Value of the template's thinking switch; None follows the settings."""
    servers: tuple[str, ...] = ()
    """Names of the MCP servers that are on."""
    constraint: Constraint | None = None
    """What replies have to follow, until the program ends."""
    constraint_name: str = ""
    """Name of the file of the constraint."""
    client: ToolClient | None = None
    """Connections to the MCP servers that are on, until the program ends."""
    connecting: int = 0
    """Number of tasks that make connections, for which prompts wait."""
    decisions: Decisions = field(default_factory=Decisions)
    """The user's decisions about their tools."""
    other_lane: Conversation | None = None
    """The conversation with the same prompts side by side whose chat and first prompt this one shares."""
    root: Node = field(default_factory=Node, init=False)
    leaf: Node = field(init=False)
    """The selected message: the path leads to it. Waiting prompts are at the end of the path."""
    prompts: list[Prompt] = field(default_factory=list, init=False)
    """The prompts of the path, in order."""

    def __post_init__(self, path: Iterable[Prompt | Reply]) -> None:
        self.leaf = self.root
        for message in path:
            self.append(message)

    @property
    def replies(self) -> list[Reply]:
        """The replies of the path, in order."""
        return [prompt.reply for prompt in self.prompts if prompt.reply is not None]

    @property
    def all_running(self) -> list[Reply]:
        """All open replies to prompts of the path."""
        return [reply for prompt in self.prompts for reply in prompt.replies if reply.open]

    @property
    def running(self) -> Reply | None:
        """The first open reply of the path."""
        return next(iter(self.all_running), None)

    @property
    def every_reply(self) -> list[Reply]:
        """The replies of all branches."""
        return [message for message in self.root.descendants() if isinstance(message, Reply)]

    @property
    def busy(self) -> list[Reply]:
        """The open replies of all branches."""
        return [reply for reply in self.every_reply if reply.open]

    @property
    def unstored(self) -> bool:
        """Whether it has what would be lost if it were read from the store again."""
        return bool(self.busy or self.waiting or self.client or self.constraint)

    @property
    def waiting(self) -> list[Prompt]:
        """Prompts of the path that wait to be sent."""
        return [prompt for prompt in self.prompts if prompt.reply is None]

    @property
    def title(self) -> str:
        """The chat's title, or its first words."""
        return (self.chat.title if self.chat else "") or self.first_words

    @property
    def first_words(self) -> str:
        """A title from the start of the first prompt, or from its attachments' names."""
        first = self.prompts[0] if self.prompts else Prompt("")
        return title_of(first.text or ", ".join(each.name for each in first.attachments))

    def set_tokens(self, one: Attachment, tokens: int) -> list[Prompt]:
        """Set the counted length of an attachment; return the prompts of the path that have it."""
        same = [prompt for prompt in self.prompts if any(each.is_same(one) for each in prompt.attachments)]
        for prompt in same:
            own = (replace(each, tokens=tokens) if each.is_same(one) else each for each in prompt.attachments)
            prompt.attachments = tuple(own)
        return same

    def request(self, settings: Settings, prompt: Prompt) -> Request:
        """A request for a reply to a prompt of the path."""
        request = settings.with_thinking(self.thinking).request(uuid4().hex, self.messages(prompt))
        return replace(request, stop_repeats=True, constraint=self.constraint, tools=self.tools)

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools that the model may call."""
        return self.client.tools if self.client is not None else ()

    def requests(self, settings: Settings, prompt: Prompt) -> list[Request]:
        """A request for each wanted reply; a given seed counts up, otherwise the engine draws one for each."""
        seeds = [None if settings.seed is None else settings.seed + number for number in range(prompt.wanted)]
        return [self.request(replace(settings, seed=seed), prompt) for seed in seeds]

    def system_in(self, settings: Settings | None) -> str | None:
        """The system prompt: its own, or that of the settings."""
        return settings.system if self.system is None and settings is not None else self.system

    def thinks_in(self, settings: Settings | None) -> bool | str | None:
        """Value of the template's thinking switch: its own choice, or that of the settings."""
        return THINKING[settings.thinking] if self.thinking is None and settings is not None else self.thinking

    def messages(self, upto: Prompt) -> tuple[Message, ...]:
        """The messages for a reply to this prompt of the path."""
        return with_results((*self._before(self.prompts.index(upto)), upto.as_message))

    def messages_with(self, prompt: str, prompts: int | None = None) -> tuple[Message, ...]:
        """The messages for a reply to a new prompt at the end of the path, or after this number of its prompts."""
        return with_results((*self._before(prompts), Message("user", prompt)))

    def _before(self, prompts: int | None) -> list[Message]:
        """The system prompt, and this number of prompts of the path with their replies; None for all."""
        messages = [Message("system", self.system)] if self.system else []
        for earlier in self.prompts[:prompts]:
            if earlier.in_context and earlier.reply is not None:
                messages += [earlier.as_message, earlier.reply.as_message]
        return messages

    def messages_of(self, prompt: Prompt, reply: Reply) -> tuple[Message, ...]:
        """The messages that the model got for this reply to a prompt of the path."""
        return tuple(message for place, message in enumerate(self.messages(prompt)) if place not in reply.left_out)

    @property
    def left_out(self) -> frozenset[Prompt]:
        """The prompts of the path that did not fit, with their replies, into the context of the last reply."""
        last = next((place for place in reversed(range(len(self.prompts))) if self.prompts[place].reply), 0)
        reply = self.prompts[last].reply if self.prompts else None
        if reply is None or not reply.left_out:
            return frozenset()
        counted = [prompt for prompt in self.prompts[:last] if prompt.in_context]
        first = 1 if self.system else 0
        return frozenset(prompt for number, prompt in enumerate(counted) if first + 2 * number in reply.left_out)

    def last_text(self) -> str:
        """The answer of the last reply that has text; otherwise empty."""
        return next(filter(None, (reply.text.strip() for reply in reversed(self.replies))), "")

    def prompt_of(self, reply: Reply) -> Prompt | None:
        """The prompt of the path with this reply."""
        return next((prompt for prompt in self.prompts if prompt is reply.parent), None)

    def append(self, message: Prompt | Reply) -> None:
        """Add a message at the end of the path."""
        self.leaf.attach(message)
        self._select(message)

    def add_sibling(self, of: Prompt | Reply, message: Prompt | Reply) -> None:
        """Continue with a new message that has the same parent as a message of the path, as `select`."""
        if of.parent is not None:
            of.parent.attach(message)
            self.select(message)

    def begin_replies(self, prompt: Prompt, replies: Iterable[Reply]) -> None:
        """Add the first replies to a prompt of the path and show the first; a prompt that waits follows that one."""
        waiting, shown = prompt.children, prompt.shown
        prompt.children, prompt.shown = [], None
        for reply in replies:
            prompt.attach(reply, chosen=False)
        for later in waiting:
            prompt.children[0].attach(later, chosen=later is shown)
        self.show_end()

    def add_results(self, reply: Reply, results: Prompt) -> None:
        """Add the results of the calls of a reply after it; prompts that wait follow them."""
        waiting = [prompt for prompt in self.waiting if prompt.parent is reply]
        reply.attach(results)
        for prompt in waiting:
            reply.children.remove(prompt)
            results.attach(prompt)
        self.show_end()

    def select(self, message: Prompt | Reply) -> None:
        """Continue with a message of any branch and what was last shown after it; waiting prompts stay at the end."""
        waiting = [prompt for prompt in self.waiting if prompt.parent is not message.parent]
        self._select(message)
        for prompt in waiting[:1]:
            if prompt not in self.prompts and prompt.parent is not None:
                prompt.parent.detach(prompt)
                self.leaf.attach(prompt)
                self._select(prompt)

    def reveal(self, row: int) -> tuple[Prompt | Reply | None, list[Prompt | Reply]]:
        """Switch to the branch with this row of the store; return its message, and the newly chosen messages."""
        found = next((m for m in self.root.descendants() if m.row == row and isinstance(m, Prompt | Reply)), None)
        return found, [] if found is None else self._select(found)

    def join(self, other: Conversation) -> None:
        """Take in the replies of the other lane, which follow the same first prompt, and what follows them."""
        for first, theirs in zip(self.prompts[:1], other.prompts, strict=False):
            for reply in theirs.children:
                first.attach(reply, chosen=False)
            first.children.sort(key=lambda reply: reply.row or 0)
        self.other_lane = None
        self.name_models()

    def name_models(self) -> None:
        """Let each reply show its model if the replies come from several ones."""
        replies = self.every_reply
        several = len({reply.model for reply in replies if reply.model}) > 1
        for reply in replies:
            reply.names_model = several and bool(reply.model)

    def drop_waiting(self) -> list[Prompt]:
        """Remove the waiting prompts; return them in order."""
        waiting = self.waiting
        for prompt in reversed(waiting):
            self.remove(prompt)
        return waiting

    def remove(self, prompt: Prompt) -> None:
        """Remove a prompt of the path; if it had other versions, continue with the last of them."""
        if prompt.parent is not None:
            before = prompt.parent
            before.detach(prompt)
            self._select(before)

    def show_end(self) -> None:
        """Let the path lead to the end that was last shown."""
        self._select(self.root)

    def _select(self, message: Node) -> list[Prompt | Reply]:
        """Let the path lead through a message, and to the end that was last shown; return the newly chosen messages."""
        changed: list[Prompt | Reply] = []
        node = message
        for parent in message.ancestors:
            if parent.shown is not node and isinstance(node, Prompt | Reply):
                changed.append(node)
                parent.shown = node
            node = parent
        self.leaf = message.end
        self.prompts = [node for node in (self.leaf, *self.leaf.ancestors) if isinstance(node, Prompt)][::-1]
        return changed


def parent_row(message: Node) -> Callable[[], int | None]:
    """A function that returns the row of the present parent of a message once that is stored.

    It is the last stored message before that if the parent is not stored, and None for a first prompt.
    """
    before = list(message.ancestors)
    return lambda: next((node.row for node in before if node.row is not None), None)
