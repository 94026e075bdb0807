"""Prompts go out, records come in, and every record finds the reply it belongs to, on screen or not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from uuid import uuid4

from app.archive import Archive
from app.conversation import Conversation, Turn
from app.marks import Marks
from app.reply import Part, Reply, Stage, stored_reply
from app.session import Session
from app.settings import Settings
from app.store import Chat
from engine import Baseline, EngineError, Finished, Message, Prefilled, Record, Request, Round

STARTING = "specchat is still starting"


class Exchange:
    """Everything between the conversations and the source.

    Prompts wait here until the models are loaded and the reply before them has ended, so that a person can type ahead.
    """

    def __init__(self) -> None:
        self.replies: dict[str, tuple[Conversation, Turn]] = {}
        """The running ones, by request."""
        self.detail = 0
        """Top-k that replies are asked to give for each judged token; 0 for none."""
        self._baseline = Baseline()
        self.changes = 0
        """Grows whenever a turn begins or ends: the list of chats is then out of date."""
        self.unseen: set[Conversation] = set()
        """Conversations with a reply that has ended; whoever shows one takes it out."""
        self.settings: Settings | None = None
        """What the next request is made with; None in a replay."""
        self._session: Session | None = None
        self._archive: Archive | None = None
        self._ready = False
        self._death = ""
        self._conversations: list[Conversation] = []
        self._unwritten: dict[str, list[Record]] = {}

    def connect(self, session: Session, archive: Archive | None) -> None:
        """From here on there is somebody to ask, and somewhere to store."""
        self._session, self._archive, self.settings = session, archive, session.settings
        if archive is not None:
            for conversation in self._conversations:
                for turn in conversation.waiting:
                    archive.prompt(conversation, turn)
        session.source.start()

    def busy_conversation(self, chat_id: int) -> Conversation | None:
        """The conversation of this chat if it has a reply running or a prompt waiting."""
        self._forget_idle()
        return next((c for c in self._conversations if c.chat and c.chat.id == chat_id), None)

    @property
    def marks(self) -> Marks:
        """How the chats stand that are not simply at rest."""
        self._forget_idle()
        busy = {c.chat.id: c.all_running for c in self._conversations if c.chat}
        answering = {i for i, replies in busy.items() if any(r.stage is not Stage.WAITING for r in replies)}
        news = {c.chat.id for c in self.unseen if c.chat}
        return Marks(frozenset(answering), frozenset(busy.keys() - answering), frozenset(news))

    def look(self, detail: int) -> None:
        """From the next round on, ask every reply for the top-k of this size; 0 asks for none."""
        self.detail = detail
        if self._session is not None:
            for request_id in self.replies:
                self._session.source.set_detail(request_id, detail)

    def show_steps(self, steps: list[tuple[Round, Part]]) -> None:
        """These rounds are being stepped through, and no others."""
        by_request = {record.request_id: (record, part) for record, part in steps}
        for request_id in self.replies:
            self._reply(request_id).stepping = by_request.get(request_id)

    def rewind(self) -> None:
        """A replay goes back: everything is given again."""
        self.replies.clear()
        self._baseline = Baseline()

    def seen(self, chat: Chat) -> None:
        """Somebody has looked at this chat."""
        self.unseen = {c for c in self.unseen if c.chat is None or c.chat.id != chat.id}

    def send(self, conversation: Conversation, prompt: str, candidates: int = 1) -> None:
        """Ask the model, for one reply or several; at once if it is free for this conversation."""
        turn = Turn(prompt, wanted=candidates)
        conversation.turns.append(turn)
        if conversation not in self._conversations:
            self._conversations.append(conversation)
        if self._archive is not None:
            self._archive.prompt(conversation, turn)
            self.changes += 1
        self._next(conversation)

    def stop(self, conversation: Conversation) -> list[str]:
        """End the running replies, keeping their text, and take the waiting prompts back."""
        waiting = conversation.waiting
        conversation.turns = [turn for turn in conversation.turns if turn.reply is not None]
        if waiting and self._archive is not None:
            self._archive.take_back(conversation, waiting)
            self.changes += 1
        self._cancel(conversation.all_running)
        return [turn.prompt for turn in waiting]

    def stop_replies(self, turn: Turn) -> None:
        """End the replies to one prompt, keeping their text."""
        self._cancel(reply for reply in turn.replies if reply.running)

    def abandon(self, conversation: Conversation) -> None:
        """End the running replies and ask nothing more; what was sent stays stored."""
        conversation.turns = [turn for turn in conversation.turns if turn.reply is not None]
        self._cancel(conversation.all_running)

    def pick(self, turn: Turn, reply: Reply) -> None:
        """Go on with this candidate; those that are still being written end where they are."""
        turn.reply = reply
        if self._archive is not None:
            self._archive.choose(reply)
        self._cancel(other for other in turn.candidates if other.running and other is not reply)
        self.changes += 1

    def adjust(self, settings: Settings) -> bool:
        """Draft as these settings say from the next round on; whether a reply is running that does.

        Raises:
            EngineError: the models have no such drafter.
        """
        if self._session is None:
            return False
        for request_id in self.replies:
            self._session.source.adjust(request_id, settings.drafter, settings.gamma)
        return bool(self.replies)

    def follow(self, conversation: Conversation, request: Request) -> None:
        """Take up a request that was recorded: its prompt, and any history the conversation lacks."""
        history = [m for m in request.messages[:-1] if m.role in ("user", "assistant")]
        if not conversation.turns:
            for prompt, reply in zip(history[::2], history[1::2], strict=False):
                conversation.turns.append(Turn(prompt.content, stored_reply(reply.content, "eos", ())))
        last = request.messages[-1].content if request.messages else request.prompt
        turn = Turn(last or f"{len(request.prompt_ids)} token ids", self._reply_to(request))
        conversation.turns.append(turn)
        self.replies[request.request_id] = (conversation, turn)

    def drain(self) -> Iterator[Record]:
        """Hand every new record to its reply; yields those that concern the whole app, to be handled in order."""
        if self._session is None:
            return
        for record in self._session.source.drain():
            request_id = getattr(record, "request_id", None)
            if request_id is None or isinstance(record, Request):
                yield record
            elif request_id in self.replies:
                self._deliver(request_id, record)

    def ready(self) -> None:
        """The models are loaded: send what has been waiting."""
        self._ready = True
        for conversation in list(self._conversations):
            self._next(conversation)

    def fail(self, sentence: str) -> None:
        """There is nobody to ask, for this reason."""
        self._ready, self._death = True, sentence
        for conversation in list(self._conversations):
            self._next(conversation)

    def write(self) -> None:
        """Store what has come since the last call."""
        for request_id, records in self._unwritten.items():
            reply = self._reply(request_id)
            if self._archive is not None and records:
                self._archive.append(reply, _text(records), records)
        self._unwritten.clear()

    def close(self) -> None:
        """End the replies, store what there is of them, and close source and store."""
        self.end()
        if self._session is not None and self._archive is not None:
            self._archive.close()

    def end(self) -> None:
        """End the replies, store what there is of them, and close the source; others may go on using the store."""
        if self._session is None:
            return
        for request_id in self.replies:
            self._session.source.cancel(request_id)
        self._session.source.close()
        for _ in self.drain():
            pass
        self.write()

    def _next(self, conversation: Conversation) -> None:
        if not self._ready or conversation.running:
            return
        for turn in conversation.waiting:
            self._ask(conversation, turn)
            if turn.reply and turn.reply.running:
                return

    def _ask(self, conversation: Conversation, turn: Turn) -> None:
        ids = [uuid4().hex for _ in range(turn.wanted)]
        if self._death or self._session is None or self.settings is None:
            turn.reply, turn.wanted = Reply(ids[0]), 1
            turn.reply.fail(self._death or STARTING)
            return
        requests = _requests(self.settings, ids, conversation.messages(turn), self.detail)
        replies = [self._reply_to(request) for request in requests]
        turn.reply, turn.candidates = replies[0], replies if len(replies) > 1 else []
        if self._archive is not None:
            self._archive.begin(conversation, turn)
        for request, reply in zip(requests, replies, strict=True):
            self.replies[request.request_id] = (conversation, turn)
            try:
                self._session.source.submit(request)
            except EngineError as error:
                reply.fail(str(error))
                self._end(request.request_id)
        self.changes += 1

    def _deliver(self, request_id: str, record: Record) -> None:
        conversation, _turn = self.replies[request_id]
        reply = self._reply(request_id)
        self.changes += reply.stage is Stage.WAITING
        reply.add(record)
        if not isinstance(record, Prefilled):
            self._unwritten.setdefault(request_id, []).append(record)
        if isinstance(record, Finished):
            self._end(request_id)
            self._next(conversation)

    def _end(self, request_id: str) -> None:
        reply = self._reply(request_id)
        records = self._unwritten.pop(request_id, [])
        if self._archive is not None and reply.reason is not None:
            self._archive.append(reply, _text(records), records)
            self._archive.finish(reply, reply.reason.value)
        conversation, _turn = self.replies.pop(request_id)
        if not conversation.running:
            self.unseen.add(conversation)
        self.changes += 1

    def _reply(self, request_id: str) -> Reply:
        """The running reply to this request."""
        _conversation, turn = self.replies[request_id]
        return next(reply for reply in turn.replies if reply.request_id == request_id)

    def _cancel(self, replies: Iterable[Reply]) -> None:
        for reply in replies:
            if self._session is not None:
                self._session.source.cancel(reply.request_id)

    def _reply_to(self, request: Request) -> Reply:
        return Reply(request.request_id, drafter=request.drafter, gamma=request.gamma, baseline=self._baseline)

    def _forget_idle(self) -> None:
        self._conversations = [c for c in self._conversations if c.running or c.waiting]


def _text(records: Iterable[Record]) -> str:
    """What the records add to their reply."""
    return "".join(r.text if isinstance(r, Round) else r.tail for r in records if isinstance(r, Round | Finished))


def _requests(settings: Settings, ids: list[str], messages: tuple[Message, ...], detail: int) -> list[Request]:
    """One request for each candidate. Without a seed the engine draws one for each; a given one counts up."""
    seeds = [None if settings.seed is None else settings.seed + number for number in range(len(ids))]
    requests = [replace(settings, seed=seed).request(i, messages) for i, seed in zip(ids, seeds, strict=True)]
    return [replace(request, detail=detail) for request in requests] if detail else requests
