"""Actions on messages: send, stop, edit, regenerate, continue, fork; and several replies to one prompt."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from specchat.app.chat import branches
from specchat.app.chat.conversation import Turn
from specchat.app.chat.reply import Reply
from specchat.app.chat.rounds import Alternative, TokenFork
from specchat.app.chat.titles import fork_title
from specchat.app.errors import AppError, UsageError
from specchat.app.settings.controls import BY_NAME
from specchat.app.settings.settings import Settings
from specchat.app.storage.attachments import Attachment
from specchat.app.ui import slash
from specchat.app.ui.actions.chats import ChatActions
from specchat.app.ui.actions.scope import ActionGroup, UnavailableError, in_background
from specchat.app.ui.actions.settings import SettingsActions
from specchat.app.ui.rendering.token_cursor import Spot
from specchat.app.ui.rendering.verdict import shown
from specchat.app.ui.screens.candidates import CandidatesScreen
from specchat.app.ui.screens.inspection import DETAIL
from specchat.app.ui.screens.lists import MessagesScreen
from specchat.engine import Candidate, FinishReason, Round

MAX_CANDIDATES = 8
WARM = 0.8
"""A temperature at which replies differ and still make sense."""
DRY = 0.8
"""The usual multiplier of DRY."""
LOOK_S = 10.0
"""Timeout of a request for the target's likeliest tokens; the model may be busy with other replies."""
NO_MESSAGES = "this chat has no messages yet"


def why_greedy(settings: Settings) -> str:
    """Why all replies would be the same with greedy settings."""
    why = "temperature is 0" if settings.temperature == 0 else "top-k is 1"
    return f"would be the same: {why}, which always takes the likeliest token."


def warmed(settings: Settings) -> dict[str, Any]:
    """Changes to greedy settings so that replies differ."""
    return {"temperature": WARM} | ({"top_k": 0} if settings.top_k == 1 else {})


@dataclass(eq=False)
class MessageActions(ActionGroup):
    """Actions on the messages of the open chat."""

    _chats: ChatActions

    def send(self, line: str, attachments: tuple[Attachment, ...]) -> None:
        """Send a prompt, or the edited version of one."""
        screen = self._scope.screen
        turn, prompt = screen.writing.end_edit(), slash.unescaped(line)
        if turn is None:
            if not screen.writing.refused(line, attachments):
                self.ask(prompt, 1, attachments)
        elif turn in screen.conversation.turns:
            version = Turn(prompt, attachments=attachments)
            screen.conversation.add_version(turn, version)
            self._scope.requests.send_turn(screen.conversation, version)
            screen.path_changed()
            screen.follow()
        else:
            screen.writing.take_back([Turn(prompt, attachments=attachments)])
            self._scope.say("not sent: the edited message is not in this branch; the composer has its text", "warning")

    def ask(self, prompt: str, candidates: int, attachments: tuple[Attachment, ...]) -> None:
        """Send a prompt in this conversation."""
        screen = self._scope.screen
        self._scope.requests.send(screen.conversation, prompt, candidates, attachments)
        screen.widgets.composer.tray.hold(())  # files are read again for the next prompt
        screen.transcript.follow()
        screen.widgets.show_frame()
        screen.redraw()

    def stop(self) -> None:
        """Stop the reply, and move waiting prompts back into the composer."""
        screen, conversation = self._scope.screen, self._scope.conversation
        self._scope.requests.stop(conversation, screen.writing.take_back(conversation.waiting))
        screen.widgets.show_frame()
        screen.update()

    def show(self) -> None:
        """Show the messages as a list."""
        if not self._scope.conversation.turns:
            raise UnavailableError(NO_MESSAGES)
        self._choose()

    def command(self, action: str, argument: str = "") -> None:
        """`/edit`, `/regenerate`, `/continue`, `/penalise`, `/fork`, and the number of a message; else the last one."""
        turns = self._scope.conversation.turns
        if not turns:
            raise UnavailableError(NO_MESSAGES)
        if argument and not (argument.isdecimal() and 1 <= int(argument) <= len(turns)):
            raise UsageError(f"/{action} takes the number of a message, 1 to {len(turns)}, or nothing for the last one")
        self._do(action, turns[int(argument) - 1 if argument else -1])

    def show_reply(self, turn: Turn, step: int) -> None:
        """Switch to a reply that is `step` places further."""
        place = turn.place + step
        if 1 <= place <= len(turn.replies) and turn.reply is not None:
            branches.show_reply(self._scope.requests, self._scope.conversation, turn, turn.replies[place - 1])
            self._scope.screen.path_changed()

    def show_version(self, turn: Turn, step: int) -> None:
        """Switch to a version of the prompt that is `step` places further."""
        number = turn.version + step
        if 1 <= number <= len(turn.versions):
            conversation = self._scope.conversation
            self._scope.requests.choose(conversation, conversation.show_version(turn, number))
            self._scope.screen.path_changed()

    @in_background("messages")
    async def _choose(self) -> None:
        chosen = await self._scope.ask(MessagesScreen(self._scope.conversation, self.show_reply, self.show_version))
        if chosen is not None:
            self._do(chosen[0], self._scope.conversation.turns[chosen[1]])

    def _do(self, action: str, turn: Turn) -> None:
        match action:
            case "go":
                self._scope.screen.go_to(turn)
            case "edit":
                self._scope.screen.writing.edit(turn)
                self._scope.screen.back()
                self._scope.screen.go_to(turn)
            case "regenerate" | "penalise" if turn.reply is None:
                raise UnavailableError("this prompt waits to be sent: it has no reply yet")
            case "regenerate":
                self._regenerate(turn)
            case "continue":
                self._continue(turn)
            case "fork":
                self._fork_chat(turn)
            case "penalise":
                self._penalise(turn)

    def on_reply(self, action: str, reply: Reply) -> None:
        """One of the actions of `command` on the message of a reply."""
        turn = self._scope.conversation.turn_of(reply)
        if turn is not None:
            self._do(action, turn)

    @in_background("asking")
    async def _regenerate(self, turn: Turn) -> None:
        settings: Settings | None = self._scope.effective
        if self._scope.effective.sampling().greedy and turn.reply is not None and turn.reply.has_text:
            settings = await self._warmer(self._scope.effective)
        if settings is not None and turn in self._scope.conversation.turns:
            self._started(branches.regenerate(self._scope.requests, self._scope.conversation, turn, settings))

    async def _warmer(self, settings: Settings) -> Settings | None:
        """Ask which settings to regenerate with; None to cancel."""
        options = [
            (f"temperature {WARM:g}, this once", "the controls stay as they are"),
            ("the same settings", "the same tokens, if the model is the same"),
        ]
        chosen = await self._scope.choose("another reply", options, f"The reply {why_greedy(settings)}")
        return None if chosen is None else replace(settings, **warmed(settings)) if chosen == 0 else settings

    def _continue(self, turn: Turn) -> None:
        reply = turn.reply
        if reply is None or reply.running:
            raise UnavailableError("the reply is still being written")
        if not reply.has_text:
            raise UnavailableError("the reply has no text to continue: r in the list of messages regenerates it")
        rounds, text = continued(reply)
        started = branches.go_on(
            *(self._scope.requests, self._scope.conversation, turn, rounds),
            text=text,
            stop_repeats=reply.reason is not FinishReason.REPEATS,
        )
        self._started(started)

    def _penalise(self, turn: Turn) -> None:
        settings = self._scope.effective
        multiplier = max(2 * (settings.dry_multiplier or 0.0), DRY)
        stronger = replace(settings, dry_multiplier=multiplier)
        self._started(branches.regenerate(self._scope.requests, self._scope.conversation, turn, stronger))
        self._scope.say(f"trying again with DRY {multiplier:g}, only this time: the controls are unchanged")

    @in_background("fork")
    async def _fork_chat(self, turn: Turn) -> None:
        conversation = self._scope.conversation
        if conversation.chat is None or turn not in conversation.turns:
            raise UnavailableError("this chat is not stored: it cannot be forked")
        turns = conversation.turns[: conversation.turns.index(turn) + 1]
        title = fork_title(conversation.title, [chat.title for chat in self._scope.screen.widgets.chats.chats])
        chat = await asyncio.wrap_future(
            self._scope.archive.fork(turns, title, conversation.system or "", conversation.thinking)
        )
        if chat is not None:
            self._chats.open(chat)
            self._scope.say(f"forked at message {len(turns)}: the other chat is unchanged")

    @in_background("asking")
    async def fork_token(self, spot: Spot) -> None:
        """Ask for a replacement of a token, and let the model continue from there."""
        turn = next((turn for turn in self._scope.conversation.turns if turn.reply is spot.reply), None)
        if turn is None:
            return
        fork = spot.reply.numbered.fork(spot.token)
        alternatives = fork.alternatives(fork.likeliest or await self._likeliest(turn, fork))
        if not alternatives:
            raise UnavailableError("no other token is known for this position: load the models to see some")
        options = [(f"“{shown(each.text)}”", each.about) for each in alternatives]
        replaced = "" if fork.taken is None else f"Instead of “{shown(fork.taken_text)}”:"
        chosen = await self._scope.choose("fork at a token", options, replaced)
        if chosen is not None and turn in self._scope.conversation.turns:
            self._take(turn, fork, alternatives[chosen])

    async def _likeliest(self, turn: Turn, fork: TokenFork) -> tuple[Candidate, ...]:
        """Ask the target for its likeliest tokens at the position; empty if it does not answer."""
        if fork.taken is None:
            return ()
        answer: asyncio.Future[Round | None] = asyncio.get_running_loop().create_future()

        def take(record: Round | None) -> None:
            if not answer.done():
                answer.set_result(record)

        if not branches.look(self._scope.requests, self._scope.conversation, turn, fork.rounds, DETAIL, take):
            return ()
        try:
            record = await asyncio.wait_for(answer, LOOK_S)
        except TimeoutError:
            return ()
        return record.detail[-1].target if record is not None and record.detail else ()

    def _take(self, turn: Turn, fork: TokenFork, alternative: Alternative) -> None:
        self._started(
            branches.go_on(self._scope.requests, self._scope.conversation, turn, fork.rounds, alternative.ids)
        )
        place = f"reply {turn.place} of {len(turn.replies)}"
        self._scope.say(f"{place} continues from “{shown(alternative.text)}” · /candidates shows all of them")

    def _started(self, started: bool) -> None:
        if not started:
            raise UnavailableError("no model is ready: wait until one is loaded, or load one with /model")
        self._scope.screen.path_changed()
        self._scope.screen.follow()


def continued(reply: Reply) -> tuple[list[Round], str]:
    """The beginning of a reply that continues this one: its rounds without an end token, and text after them.

    A reply that had ended would only end again, so a new paragraph begins after it.
    """
    rounds, text = list(reply.rounds), ""
    if not rounds:
        text = reply.text
    elif reply.reason is FinishReason.EOS:
        record = reply.rounds[-1]
        end = record.accepted - 1 if record.last is None else len(record.drafted)
        rounds = reply.numbered.up_to(reply.starts[-1] + end)
    if reply.reason is FinishReason.EOS and not reply.text.endswith("\n"):
        text += "\n\n"
    return rounds, text


@dataclass(eq=False)
class CandidateActions(ActionGroup):
    """Actions on several replies to one prompt."""

    _controls: SettingsActions
    _messages: MessageActions

    @property
    def turns(self) -> list[Turn]:
        """Turns of the open chat that have or request several replies."""
        return [turn for turn in self._scope.conversation.turns if turn.wanted > 1 or len(turn.replies) > 1]

    def command(self, argument: str) -> None:
        """`/candidates N PROMPT` requests replies; `/candidates` shows the present ones."""
        if not argument:
            self.show()
            return
        number, *prompt = argument.split(maxsplit=1)
        if not number.isdecimal() or not 2 <= int(number) <= MAX_CANDIDATES or not prompt:
            raise UsageError(f"/candidates takes a number from 2 to {MAX_CANDIDATES} followed by a prompt")
        self._ask(int(number), prompt[0], self._scope.effective)

    def begin(self) -> None:
        """Put the command in front of the unsent prompt."""
        self._scope.screen.put(f"/candidates 4 {self._scope.screen.typed}")

    def show(self) -> None:
        """Show the replies to the latest prompt with several."""
        if not self.turns:
            raise UnavailableError("this chat has no prompt with several replies: /candidates 4 PROMPT requests four")
        turn = self.turns[-1]
        screen = CandidatesScreen(turn, self._scope.requests, self._scope.loaded.slots, self._scope.screen.pace)
        self._scope.app.push_screen(screen, partial(self._picked, turn))

    @in_background("asking")
    async def _ask(self, count: int, prompt: str, settings: Settings) -> None:
        line = f"/candidates {count} {prompt}"
        if settings.sampling().greedy:
            chosen = await self._scope.choose(
                "several replies",
                [(f"set temperature {WARM:g} and ask", "from now on"), ("ask for one reply", "greedy, as it is")],
                f"All {count} replies {why_greedy(settings)}",
            )
            if chosen is None:
                self._scope.screen.widgets.composer.take_back([line])
                return
            changes = warmed(settings)
            if chosen == 1:
                count = 1
            elif not self._controls.use(replace(self._scope.settings, **changes), [BY_NAME[name] for name in changes]):
                return
        try:
            attachments = self._scope.screen.widgets.composer.tray.resolved(prompt)
        except AppError:
            self._scope.screen.widgets.composer.take_back([line])
            raise
        self._messages.ask(prompt, count, attachments)
        if self._scope.conversation.turns[-1].wanted > 1:  # otherwise the reply says why there is only one
            self.show()

    def _picked(self, turn: Turn, index: int | None) -> None:
        if index is not None:
            branches.pick(self._scope.requests, self._scope.conversation, turn, turn.replies[index])
            self._scope.screen.update()
        if len(turn.replies) > 1:
            self._scope.say(f"continuing with reply {turn.place} of {len(turn.replies)} · /candidates shows them again")
