"""Sends prompts to a source, and delivers each record to the reply it belongs to, on screen or not.

Records are stored before they are shown: what a person has seen is there after a kill.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import replace
from uuid import uuid4

from specchat.app.chat.active_conversations import ActiveConversations
from specchat.app.chat.archive import Archive
from specchat.app.chat.conversation import Conversation, Turn
from specchat.app.chat.delivery import Delivery
from specchat.app.chat.examination import Examination
from specchat.app.chat.questions import Questions
from specchat.app.chat.reply import Reply, Stage, furthest
from specchat.app.chat.requests import candidate_requests, going_on, request_for, told
from specchat.app.chat.running_replies import RunningReplies
from specchat.app.chat.session import Session
from specchat.app.chat.unsent import Unsent
from specchat.app.settings.settings import THINKING, Settings
from specchat.app.sources.no_source import NoSource
from specchat.app.sources.source import Source
from specchat.app.sources.stepper import Part
from specchat.app.storage.attachments import Attachment
from specchat.engine import EngineError, Event, FinishReason, Message, Record, Request, Round, gamma_text

STARTING = "specchat is still starting"
PROMPT_WAIT_S = 0.05
"""How long a prompt, which is sent once, waits to be stored."""


class RequestManager:
    """Stands between conversations and one source.

    Prompts wait here until the models are loaded and the reply before them has ended, so that a person can type ahead.
    """

    def __init__(self, observe: Callable[[str, Event], None] | None = None) -> None:
        """Make it; `observe` is called with the request's id and each event of a running reply."""
        self._running = RunningReplies()
        self.detail = 0
        """Size of the top-k that replies record for each tested token; 0 for none."""
        self.changes = 0
        """Grows whenever a turn begins or ends: the list of chats is then out of date."""
        self.active = ActiveConversations()
        self.settings: Settings | None = None
        """What the next request is made with; None in a replay."""
        self._session: Session | None = None
        self._archive: Archive | None = None
        self._ready = False
        self._target = ""
        """The model that answers, as the source names it."""
        self._failure = ""
        self._questions = Questions()
        self._delivery = Delivery(self._running, self._questions, self._changed, self._ended, observe)

    @property
    def replies(self) -> Mapping[str, tuple[Conversation, Turn]]:
        """Conversation and turn of each running reply, by request."""
        return self._running.turns

    @property
    def session(self) -> Session | None:
        """What it is connected to; None while specchat starts."""
        return self._session

    def connect(self, session: Session, archive: Archive | None) -> None:
        """Send prompts to this session's source, and store them and the replies in `archive`."""
        self._session, self._archive, self.settings = session, archive, session.settings
        self._delivery.archive = archive
        if archive is not None:
            for conversation in self.active:
                conversation.system = self.system_of(conversation)
                for turn in conversation.waiting:
                    archive.prompt(conversation, turn)
        session.source.start()

    def count(self, messages: tuple[Message, ...], key: str) -> None:
        """Ask how many tokens these messages take as a prompt; a `Counted` of this key answers."""
        if self._session is not None and self._ready and not self._failure:
            self._session.source.count(messages, key)

    def set_tokens(self, conversation: Conversation, one: Attachment, tokens: int) -> None:
        """So many tokens were counted for what was sent along with prompts of the path."""
        for turn in conversation.set_tokens(one, tokens):
            if self._archive is not None:
                self._archive.set_tokens(turn, one.name, tokens)

    def set_detail(self, detail: int) -> None:
        """Record the top-k of this size for every reply, from its next round on; 0 records none."""
        self.detail = detail
        if self._session is not None:
            for request_id in self.replies:
                self._session.source.set_detail(request_id, detail)

    def show_steps(self, steps: list[tuple[Round, Part]]) -> None:
        """These rounds are being stepped through, and no others."""
        self._running.show_steps(steps)

    def rewind(self) -> None:
        """Forget the running replies: a replay is played again from an earlier place."""
        self._running.forget()

    def system_of(self, conversation: Conversation) -> str:
        """A chat's instructions to the model: its own, or those of the settings."""
        if conversation.system is not None:
            return conversation.system
        return self.settings.system if self.settings is not None else ""

    def thinks(self, conversation: Conversation) -> bool | None:
        """Whether a chat's replies think, where the model can be told: its own choice, or that of the settings."""
        if conversation.thinking is not None or self.settings is None:
            return conversation.thinking
        return THINKING[self.settings.thinking]

    def switch(self, source: Source | None, settings: Settings) -> None:
        """Ask another source from here on, that has been started; None for none, until there is one.

        No reply may be running. Prompts wait until the models are loaded.
        """
        assert self._session is not None
        assert not self.replies
        self._questions.end("another model has been loaded since")
        self._ready, self._failure = False, ""
        self._running.forget()
        self._session = replace(self._session, source=source or NoSource())
        self.settings = settings

    @property
    def waiting(self) -> bool:
        """Whether a prompt waits for a model."""
        return any(conversation.waiting for conversation in self.active)

    def send(
        self, conversation: Conversation, prompt: str, candidates: int = 1, attachments: tuple[Attachment, ...] = ()
    ) -> None:
        """Ask for one reply or several; at once unless a reply of this conversation is running."""
        turn = Turn(prompt, wanted=candidates, attachments=attachments)
        conversation.append(turn)
        self._send(conversation, turn)

    def edit(
        self, conversation: Conversation, turn: Turn, prompt: str, attachments: tuple[Attachment, ...] = ()
    ) -> None:
        """Send another version of an earlier prompt; what was there stays beside it."""
        version = Turn(prompt, attachments=attachments)
        conversation.add_version(turn, version)
        self._send(conversation, version)

    def regenerate(self, conversation: Conversation, turn: Turn, settings: Settings) -> bool:
        """Ask for one more reply to a prompt of the path, with these settings; whether there is an engine to ask."""
        if settings.seed is not None:  # the same one would say the same again
            settings = replace(settings, seed=settings.seed + len(turn.replies))
        return self._ask_again(conversation, turn, request_for(settings, conversation, turn), ())

    def go_on(
        self,
        conversation: Conversation,
        turn: Turn,
        rounds: Sequence[Round],
        chosen: Sequence[int] = (),
        text: str = "",
    ) -> bool:
        """Ask for one more reply to a prompt of the path; whether there is an engine to ask.

        Args:
            conversation: Has the prompt.
            turn: The prompt.
            rounds: Rounds of another reply that it begins with; the engine takes them from its cache where it can.
            chosen: Token ids behind them.
            text: Text behind those.
        """
        if self.settings is None:
            return False
        request = request_for(self.settings, conversation, turn)
        if any(record.observed for record in rounds):  # its tokens have no ids: it goes on from its text
            text, rounds = "".join(record.text for record in rounds) + text, rounds[:0]
        return self._ask_again(conversation, turn, going_on(request, rounds, chosen, text), rounds)

    def look(
        self,
        conversation: Conversation,
        turn: Turn,
        rounds: Sequence[Round],
        detail: int,
        then: Callable[[Round | None], None],
    ) -> bool:
        """Ask the target for the likeliest tokens behind these rounds of a reply; whether there is an engine to ask.

        `then` gets a round that was made for its `Round.detail`, or None where there is no answer.
        """
        if self.settings is None or self._session is None or not self._ready or self._failure:
            return False
        if any(record.observed for record in rounds):
            return False
        request = request_for(self.settings, conversation, turn)
        return self._questions.look(self._session.source, request, rounds, detail, then)

    def show_version(self, conversation: Conversation, turn: Turn, number: int) -> None:
        """Go on with another version of a prompt of the path, by its number from 1."""
        self._chosen(conversation, conversation.show_version(turn, number))

    def stop(self, conversation: Conversation, unsent: Unsent | None = None) -> list[str]:
        """End the running replies, keeping their text, and take the waiting prompts back.

        What is typed and not sent from now on, if given, is stored as they are removed: a kill loses neither.
        """
        waiting = conversation.drop_waiting()
        if waiting and self._archive is not None:
            self._archive.take_back(conversation, waiting, unsent)
            self.changes += 1
        self._cancel(conversation.all_running)
        return [turn.prompt for turn in waiting]

    def stop_replies(self, turn: Turn) -> None:
        """End the replies to one prompt, keeping their text."""
        self._cancel(reply for reply in turn.replies if reply.running)

    def abandon(self, conversation: Conversation) -> None:
        """End the running replies and drop the waiting prompts; what was sent stays stored."""
        conversation.drop_waiting()
        self._cancel(conversation.busy)

    def show_reply(self, conversation: Conversation, turn: Turn, reply: Reply) -> None:
        """Go on with another reply to a prompt of the path."""
        conversation.show_reply(turn, reply)
        self._chosen(conversation, reply)

    def pick(self, conversation: Conversation, turn: Turn, reply: Reply) -> None:
        """Go on with this one of several replies, and end the others."""
        self.show_reply(conversation, turn, reply)
        self._cancel(other for other in turn.replies if other.running and other is not reply)

    def adjust(self, settings: Settings) -> bool:
        """Draft as these settings say, from the next round on; whether any reply is running.

        Raises:
            EngineError: the models have no such drafter.
        """
        if self._session is None:
            return False
        for request_id in self.replies:
            self._session.source.adjust(request_id, settings.drafter, settings.gamma)
            self._running.reply(request_id).gamma = gamma_text(settings.gamma)
        return bool(self.replies)

    def examine(self, conversation: Conversation, reply: Reply, token: int, detail: int) -> None:
        """Compute the top-k lists of this size at a token of a reply that has ended; they come to `Reply.computed`."""
        turn = next((turn for turn in conversation.turns if reply in turn.replies), None)
        asked = self._questions.asked(reply, token)
        known = token in reply.computed and reply.computed[token].detail is not None
        if turn is None or self._session is None or self.settings is None or asked or known or reply.metrics.observed:
            return
        examination = Examination(reply, token, detail)
        if reply.model and reply.model != self.model:
            examination.fail(f"the reply came from {reply.model}, which is not loaded")
        else:
            settings = self.settings.with_thinking(conversation.thinking)
            self._questions.examine(self._session.source, examination, settings, told(conversation, turn, reply))

    def follow(self, conversation: Conversation, request: Request) -> None:
        """Add a recorded request to a conversation: its prompt, and the history that the conversation lacks."""
        self._running.follow(conversation, request)

    @property
    def stage(self) -> Stage | None:
        """How far the running reply has got that is furthest; None where none runs."""
        return furthest(self._running.reply(request_id).stage for request_id in self._running.turns)

    def drain(self) -> Iterator[Record]:
        """Store every new record, then deliver it to its reply; yields those that belong to none, in order."""
        if self._session is not None:
            self._delivery.take_in(self._session.source)
        yield from self._delivery.due()

    def ready(self, target: str = "") -> None:
        """The models are loaded, and the source names this target: send what has been waiting."""
        self._ready, self._target = True, target
        for conversation in self.active:
            self._next(conversation)

    def fail(self, sentence: str) -> None:
        """There is no engine, for this reason: every prompt is answered with it."""
        self._ready, self._failure = True, sentence
        for conversation in self.active:
            self._next(conversation)

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
        self._delivery.take_in(self._session.source)
        self._delivery.rest()

    def _send(self, conversation: Conversation, turn: Turn) -> None:
        """Store a prompt that is new on the path, and ask as soon as that can be."""
        self.active.watch(conversation)
        if self.settings is not None:
            conversation.system = self.system_of(conversation)
        if self._archive is not None:
            wait([self._archive.prompt(conversation, turn)], PROMPT_WAIT_S)
            self.changes += 1
        self._next(conversation)

    def _chosen(self, conversation: Conversation, one: Reply | Turn) -> None:
        if self._archive is not None:
            self._archive.choose(one)
        self.changes += 1
        self._next(conversation)

    def _ask_again(self, conversation: Conversation, turn: Turn, request: Request, rounds: Sequence[Round]) -> bool:
        """Ask for a further reply to a prompt of the path, and go on with it."""
        if self._session is None or not self._ready or self._failure:
            return False
        reply = self._running.make(request)
        reply.carry(rounds)
        turn.replies.append(reply)
        conversation.show_reply(turn, reply)
        self.active.watch(conversation)
        self._begin(conversation, turn, [replace(request, detail=self.detail)], [reply])
        return True

    def _next(self, conversation: Conversation) -> None:
        if not self._ready or conversation.running:
            return
        for turn in conversation.waiting:
            self._ask(conversation, turn)
            if turn.reply and turn.reply.running:
                return

    def _ask(self, conversation: Conversation, turn: Turn) -> None:
        if self._failure or self._session is None or self.settings is None:
            failed = Reply(uuid4().hex)
            failed.fail(self._failure or STARTING)
            turn.replies, turn.wanted = [failed], 1
            conversation.begin_reply(turn, failed)
            return
        requests = candidate_requests(self.settings, conversation, turn, self.detail)
        replies = [self._running.make(request) for request in requests]
        turn.replies = replies
        conversation.begin_reply(turn, replies[0])
        self._begin(conversation, turn, requests, replies)

    @property
    def model(self) -> str:
        """What answers, as the settings name it; at a server, as that does."""
        if self._session is not None and self._session.attached:
            return self._target
        return self.settings.target if self.settings is not None else ""

    def _begin(
        self, conversation: Conversation, turn: Turn, requests: Sequence[Request], replies: Sequence[Reply]
    ) -> None:
        for reply in replies:
            reply.model = self.model
        conversation.tell_models()
        if self._archive is not None:
            self._archive.begin(conversation, turn, replies)
        assert self._session is not None  # who gets here has asked
        for request, reply in zip(requests, replies, strict=True):
            self._running.turns[request.request_id] = (conversation, turn)
            try:
                self._session.source.submit(request)
            except EngineError as error:
                reply.fail(str(error))
                if self._archive is not None:
                    self._archive.finish(reply, FinishReason.ERROR.value)
                self._end(request.request_id)
        self.changes += 1

    def _ended(self, request_id: str) -> None:
        """The last record of a reply is there."""
        self._next(self._end(request_id))

    def _end(self, request_id: str) -> Conversation:
        conversation, _turn = self._running.turns.pop(request_id)
        if not conversation.busy:
            self.active.unseen.add(conversation)
        self._changed()
        return conversation

    def _changed(self) -> None:
        self.changes += 1

    def _cancel(self, replies: Iterable[Reply]) -> None:
        for reply in replies:
            if self._session is not None:
                reply.stopping = reply.running
                self._session.source.cancel(reply.request_id)
