"""Prompts go out, records come in, and every record finds the reply it belongs to, on screen or not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from uuid import uuid4

from app.archive import Archive
from app.conversation import Conversation, Turn
from app.reply import Reply, stored_reply
from app.session import Session
from engine import Died, EngineError, Finished, Prefilled, Record, Request, Round

STARTING = "specchat is still starting"


class Exchange:
    """Everything between the conversations and the source.

    Prompts wait here until the models are loaded and the reply before them has ended, so that a person can type ahead.
    """

    def __init__(self) -> None:
        self.replies: dict[str, tuple[Conversation, Turn]] = {}
        """The running ones, by request."""
        self.changes = 0
        """Grows whenever a turn begins or ends: the list of chats is then out of date."""
        self._session: Session | None = None
        self._archive: Archive | None = None
        self._ready = False
        self._death = ""
        self._conversations: list[Conversation] = []
        self._unwritten: dict[str, list[Record]] = {}

    def connect(self, session: Session, archive: Archive | None) -> None:
        """From here on there is somebody to ask, and somewhere to store."""
        self._session, self._archive = session, archive
        session.source.start()

    def busy_conversation(self, chat_id: int) -> Conversation | None:
        """The conversation of this chat if it has a reply running or a prompt waiting."""
        self._forget_idle()
        return next((c for c in self._conversations if c.chat and c.chat.id == chat_id), None)

    @property
    def busy_chats(self) -> set[int]:
        """Chats that have a reply running or a prompt waiting."""
        self._forget_idle()
        return {c.chat.id for c in self._conversations if c.chat}

    def send(self, conversation: Conversation, prompt: str) -> None:
        """Ask the model; at once if it is free for this conversation."""
        conversation.turns.append(Turn(prompt))
        if conversation not in self._conversations:
            self._conversations.append(conversation)
        self._next(conversation)

    def stop(self, conversation: Conversation) -> list[str]:
        """End the running reply, keeping its text, and take the waiting prompts back."""
        taken = [turn.prompt for turn in conversation.waiting]
        conversation.turns = [turn for turn in conversation.turns if turn.reply is not None]
        reply = conversation.running
        if reply is not None and self._session is not None:
            self._session.source.cancel(reply.request_id)
        return taken

    def follow(self, conversation: Conversation, request: Request) -> None:
        """Take up a request that was recorded: its prompt, and any history the conversation lacks."""
        history = [m for m in request.messages[:-1] if m.role in ("user", "assistant")]
        if not conversation.turns:
            for prompt, reply in zip(history[::2], history[1::2], strict=False):
                conversation.turns.append(Turn(prompt.content, stored_reply(reply.content, "eos", ())))
        last = request.messages[-1].content if request.messages else request.prompt
        turn = Turn(last or f"{len(request.prompt_ids)} token ids", _reply_to(request))
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

    def died(self, death: Died) -> None:
        """The engine has ended: whatever waits, and whatever comes, gets its last sentence."""
        self.fail(death.message)

    def fail(self, sentence: str) -> None:
        """There is nobody to ask, for this reason."""
        self._ready, self._death = True, sentence
        for conversation in list(self._conversations):
            self._next(conversation)

    def write(self) -> None:
        """Store what has come since the last call."""
        for request_id, records in self._unwritten.items():
            _conversation, turn = self.replies[request_id]
            if self._archive is not None and records:
                self._archive.append(turn, _text(records), records)
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
        request_id = uuid4().hex
        turn.reply = Reply(request_id)
        if self._death or self._session is None or self._session.settings is None:
            turn.reply.fail(self._death or STARTING)
            return
        try:
            request = self._session.settings.request(request_id, conversation.messages(turn))
            turn.reply = _reply_to(request)
            if self._archive is not None:
                self._archive.begin(conversation, turn)
            self.replies[request_id] = (conversation, turn)
            self.changes += 1
            self._session.source.submit(request)
        except EngineError as error:
            turn.reply.fail(str(error))
            self._end(request_id, turn)

    def _deliver(self, request_id: str, record: Record) -> None:
        conversation, turn = self.replies[request_id]
        if turn.reply is None:
            return
        turn.reply.add(record)
        if not isinstance(record, Prefilled):
            self._unwritten.setdefault(request_id, []).append(record)
        if isinstance(record, Finished):
            self._end(request_id, turn)
            self._next(conversation)

    def _end(self, request_id: str, turn: Turn) -> None:
        records = self._unwritten.pop(request_id, [])
        if self._archive is not None and turn.reply is not None and turn.reply.reason is not None:
            self._archive.append(turn, _text(records), records)
            self._archive.finish(turn, turn.reply.reason.value)
        self.replies.pop(request_id, None)
        self.changes += 1

    def _forget_idle(self) -> None:
        self._conversations = [c for c in self._conversations if c.running or c.waiting]


def _text(records: Iterable[Record]) -> str:
    """What the records add to their reply."""
    return "".join(r.text if isinstance(r, Round) else r.tail for r in records if isinstance(r, Round | Finished))


def _reply_to(request: Request) -> Reply:
    return Reply(request.request_id, drafter=request.drafter, gamma=request.gamma)
