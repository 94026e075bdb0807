"""Sends prompts to a source and delivers its records to replies, whether they are on screen or not.

Records are stored before they are shown, so that everything a user has seen survives a kill.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

from specchat import engine
from specchat.app.chat.archive import Archive, NoArchive
from specchat.app.chat.conversation import Conversation, Prompt
from specchat.app.chat.delivery import ActiveConversations, Arrivals, RunningReplies
from specchat.app.chat.questions import Questions
from specchat.app.chat.reply import Reply
from specchat.app.chat.reply_stage import Stage
from specchat.app.chat.tray import Unsent
from specchat.app.settings.settings import Settings
from specchat.app.sources.source import NoSource, Source
from specchat.app.storage.attachments import Attachment
from specchat.app.storage.store import Store


@dataclass(frozen=True, slots=True)
class Session:
    """One run of the app."""

    source: Source
    settings: Settings | None = None
    """None in a replay."""
    store: Store | None = None
    """None if nothing is stored: in a replay, or if the store cannot be opened."""
    notices: tuple[str, ...] = ()
    """Messages to show at the start."""
    settings_file: Path | None = None
    """File for settings that are changed in the app; None if they are not stored."""
    attached: bool = False
    """Whether the source is a server, whose models the settings do not name."""


UNCONNECTED = Session(NoSource())
"""While specchat starts."""
STARTING = "specchat is still starting"
PROMPT_WAIT_S = 0.05
"""How long sending waits until the prompt is stored."""


class RequestManager:
    """Connects conversations to one source.

    Prompts wait until the models are loaded and the reply before them has ended, so that a user can type ahead.
    """

    def __init__(self, observe: Callable[[Conversation, Reply, engine.Event], None] | None = None) -> None:
        """Create it; `observe` is called with each event of a running reply, after the reply has taken it."""
        self.running = RunningReplies()
        self.replies = self.running.replies
        self.changes = 0
        """Number of changes to the list of chats: turns that began or ended."""
        self.active = ActiveConversations()
        self.settings: Settings | None = None
        """Settings of the next request; None in a replay."""
        self.session = UNCONNECTED
        self._archive: Archive = NoArchive()
        self._ready = False
        self._target = ""
        """The answering model, as the source names it."""
        self._own = engine.Sampling()
        self._failure = ""
        self.questions = Questions()
        self._chats: dict[str, tuple[int, str]] = {}
        """Id and title of the chat of each ended reply, see `chat_of`."""
        self._arrivals = Arrivals()
        self._observe = observe

    def connect(self, session: Session, archive: Archive) -> None:
        """Start this session's source and send prompts to it; store prompts and replies in `archive`."""
        self.session, self._archive, self.settings = session, archive, session.settings
        self.running.source = session.source
        for conversation in self.active:
            conversation.system = conversation.system_in(self.settings)
            for prompt in conversation.waiting:
                archive.prompt(conversation, prompt)
        session.source.start()

    def switch(self, source: Source | None, settings: Settings) -> None:
        """Change to another source, which was started; None until there is one. No reply may be running."""
        assert not self.replies
        self.questions.end("another model has been loaded since")
        self._ready, self._failure, self._own = False, "", engine.Sampling()
        self.running.forget()
        self._chats.clear()
        self.running.source = source or NoSource()
        self.session = replace(self.session, source=self.running.source)
        self.settings = settings

    def ready(self, target: str = "", own: engine.Sampling | None = None) -> None:
        """Send waiting prompts: the models are loaded; the source's name of its target, and that one's own settings."""
        self._ready, self._target, self._own = True, target, own or engine.Sampling()
        for conversation in self.active:
            self._next(conversation)

    def fail(self, sentence: str) -> None:
        """Fail every prompt with this sentence: there is no engine."""
        self._ready, self._failure = True, sentence
        for conversation in self.active:
            self._next(conversation)

    def drain(self) -> Iterator[engine.Record]:
        """Store new records and deliver them to their replies; yield all other records, in order."""
        self._take_in()
        for record in self._arrivals.due():
            yield from self._deliver(record)

    def close(self) -> None:
        """End the replies, store them, and close source and archive."""
        if self.settings is not None and self.settings.keep_cache == "on":
            self._keep_texts()
        self.end()
        self._archive.close()

    def end(self) -> None:
        """End the replies, store them, and close the source."""
        self.running.cancel([reply for _, reply in self.replies.values()])
        self.session.source.close()
        self._take_in()
        for record in self._arrivals.rest():
            list(self._deliver(record))

    def _keep_texts(self) -> None:
        """End the replies, and let the engine write what it has read of chats that are stored."""
        self.running.cancel([reply for _, reply in self.replies.values()])
        stored = {chat.id for chat in self._archive.chats().result() or ()}
        chats = {request_id: self.chat_of(request_id)[0] for request_id in (*self._chats, *self.replies)}
        self.session.source.keep_texts({request_id: str(chat) for request_id, chat in chats.items() if chat in stored})

    @property
    def model(self) -> str:
        """The answering model as the settings name it, or as an attached server does."""
        if self.session.attached:
            return self._target
        return self.settings.target if self.settings is not None else ""

    @property
    def effective(self) -> Settings | None:
        """The settings of the next request, with the model's own sampling where they have none."""
        return self.settings and self.settings.with_model(self._own)

    @property
    def waiting(self) -> bool:
        """Whether a prompt waits for a model."""
        return any(conversation.waiting for conversation in self.active)

    def send(
        self, conversation: Conversation, prompt: str, candidates: int = 1, attachments: tuple[Attachment, ...] = ()
    ) -> None:
        """Send a prompt for one or several replies, now or after the running reply of this conversation."""
        message = Prompt(prompt, attachments, wanted=candidates)
        conversation.append(message)
        self.send_prompt(conversation, message)

    def stop(self, conversation: Conversation, unsent: Unsent | None = None) -> list[str]:
        """End the running replies, keeping their text, and take back the waiting prompts.

        `unsent` is the new text of the composer; it is stored in the same transaction, so that a kill loses nothing.
        """
        waiting = conversation.drop_waiting()
        if waiting:
            self._archive.take_back(conversation, waiting, unsent)
            self._changed()
        self.running.cancel(conversation.all_running)
        return [prompt.text for prompt in waiting]

    def take_back(self, conversation: Conversation, prompt: Prompt, unsent: Unsent) -> None:
        """Remove the last prompt, which failed before its first token; `unsent` as in `stop`."""
        conversation.remove(prompt)
        self._archive.take_back(conversation, [prompt], unsent)
        self._changed()

    def abandon(self, conversation: Conversation) -> None:
        """End the running replies and drop the waiting prompts, which stay in the store."""
        conversation.drop_waiting()
        self.running.cancel(conversation.busy)

    def chat_of(self, request_id: str) -> tuple[int, str]:
        """The chat that a reply of this model belongs to: its id, 0 if it is not stored, and its title at that time.

        The title of requests that no reply came from is empty.
        """
        if request_id not in self.replies:
            return self._chats.get(request_id, (0, ""))
        conversation, _ = self.replies[request_id]
        return conversation.chat.id if conversation.chat is not None else 0, conversation.title

    def count(self, messages: tuple[engine.Message, ...], key: str, tools: tuple[engine.Tool, ...] = ()) -> None:
        """Request the number of tokens of these messages and tools; the answer is a `Counted` with this key."""
        if (source := self.source) is not None:
            source.count(messages, key, tools)

    def show_cache(self) -> bool:
        """Request a `CacheUse` if the models are loaded; return whether they are.

        Raises:
            EngineError: the source cannot tell.
        """
        if (source := self.source) is not None:
            source.show_cache()
        return source is not None

    def set_tokens(self, conversation: Conversation, one: Attachment, tokens: int) -> None:
        """Store the counted length of an attachment of prompts of the path."""
        for prompt in conversation.set_tokens(one, tokens):
            self._archive.set_tokens(prompt, one.name, tokens)

    @property
    def source(self) -> Source | None:
        """The source if the models are loaded."""
        return self.session.source if self._ready and not self._failure else None

    def send_prompt(self, conversation: Conversation, prompt: Prompt) -> None:
        """Store a new prompt of the path and request its replies when possible."""
        self.active.watch(conversation)
        self.make_way()
        conversation.system = conversation.system_in(self.settings)
        wait([self._archive.prompt(conversation, prompt)], PROMPT_WAIT_S)
        self._changed()
        self._next(conversation)

    def send_results(
        self, conversation: Conversation, reply: Reply, results: Iterable[engine.MessagePart], *, complete: bool
    ) -> None:
        """Add the results of the calls of a reply, and request the next reply if they are complete."""
        prompt = Prompt("", results=tuple(results))
        conversation.add_results(reply, prompt)
        if not complete:
            stopped = Reply(uuid4().hex)
            stopped.stop()
            conversation.begin_replies(prompt, [stopped])
        self.send_prompt(conversation, prompt)

    def proceed(self, conversation: Conversation) -> None:
        """Send the prompts that waited for the calls of a reply, or for MCP servers."""
        self._changed()
        self._next(conversation)

    @property
    def idle(self) -> bool:
        """Whether the engine has nothing to do, not even to write a title."""
        return not self.replies and not self.waiting and not self.questions.saying

    def make_way(self) -> None:
        """Cancel what is computed only while the engine is idle."""
        if self.source is not None:
            self.questions.cancel_titles(self.source)

    def measure(self, reply: Reply, measured: engine.Measured) -> None:
        """Give an ended reply another speedup than its own plain rounds do."""
        reply.add(measured)
        self._archive.measured(reply)

    def choose(self, conversation: Conversation, message: Reply | Prompt) -> None:
        """Continue with another reply, or another version of a prompt."""
        conversation.select(message)
        self._archive.choose(message)
        self._changed()
        self._next(conversation)

    def request_another(
        self, conversation: Conversation, prompt: Prompt, request: engine.Request, rounds: Sequence[engine.Round]
    ) -> bool:
        """Request one more reply to a prompt, which starts with these rounds; return whether there is an engine."""
        if self.source is None:
            return False
        self.make_way()
        reply = self.running.make(request)
        reply.carry(rounds)
        prompt.attach(reply)
        conversation.select(reply)
        self.active.watch(conversation)
        self._begin(conversation, prompt, [request], [reply])
        return True

    def _next(self, conversation: Conversation) -> None:
        """Request replies to the waiting prompts, up to the first that runs."""
        if not self._ready or conversation.running or conversation.connecting:
            return
        for prompt in conversation.waiting:
            self._request(conversation, prompt)
            if prompt.reply and prompt.reply.running:
                return

    def _request(self, conversation: Conversation, prompt: Prompt) -> None:
        if self.source is None or (settings := self.effective) is None:
            failed = Reply(uuid4().hex)
            failed.fail(self._failure or STARTING)
            prompt.wanted = 1
            conversation.begin_replies(prompt, [failed])
            return
        requests = conversation.requests(settings, prompt)
        conversation.begin_replies(prompt, [self.running.make(request) for request in requests])
        self._begin(conversation, prompt, requests, prompt.replies)

    def _begin(
        self, conversation: Conversation, prompt: Prompt, requests: Sequence[engine.Request], replies: Sequence[Reply]
    ) -> None:
        for reply in replies:
            reply.model = self.model
        conversation.name_models()
        self._archive.begin(conversation, prompt, replies)
        for request, reply in zip(requests, replies, strict=True):
            self.replies[request.request_id] = (conversation, reply)
            try:
                self.session.source.submit(replace(request, detail=self.running.detail))
            except engine.EngineError as error:
                reply.fail(str(error))
                self._archive.finish(reply, engine.FinishReason.ERROR.value)
                self._end(request.request_id)
        self._changed()

    def _take_in(self) -> None:
        """Take new records from the source and start to store them."""
        records = list(self.session.source.drain())
        own = self.running.storable(records)
        self._arrivals.add(records, self._archive.append(own) if own else None)

    def _deliver(self, record: engine.Record) -> Iterator[engine.Record]:
        """Give a record to its reply or question; yield one of neither."""
        request_id = getattr(record, "request_id", None)
        if isinstance(record, engine.Ready):
            self.running.baseline.add(record)
        if request_id is None or isinstance(record, engine.Request):
            yield record
        elif request_id in self.replies:
            self._add_to_reply(request_id, record)
        elif request_id in self.questions:
            self.questions.add(request_id, record)

    def _add_to_reply(self, request_id: str, record: engine.Event) -> None:
        conversation, reply = self.replies[request_id]
        if reply.stage is Stage.WAITING:
            self._changed()
        reply.add(record)
        if isinstance(record, engine.Finished):
            self._archive.measured(reply)
            self._end(request_id)
        if self._observe is not None:
            self._observe(conversation, reply, record)
        if isinstance(record, engine.Finished):
            self._next(conversation)

    def _end(self, request_id: str) -> None:
        self._chats[request_id] = self.chat_of(request_id)
        conversation, _ = self.replies.pop(request_id)
        if not conversation.busy and conversation.chat is not None:
            self.active.ended.add(conversation.chat.id)
        self._changed()

    def _changed(self) -> None:
        self.changes += 1
