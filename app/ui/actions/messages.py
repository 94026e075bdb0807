"""Actions on messages: send, stop, edit, regenerate, continue, fork; and several replies to one prompt."""

import asyncio
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from specchat.app.chat import branches
from specchat.app.chat.branches import Alternative, TokenFork, fork_at, rounds_before
from specchat.app.chat.conversation import Prompt
from specchat.app.chat.reply import Reply
from specchat.app.chat.titles import fork_title
from specchat.app.errors import AppError, UsageError
from specchat.app.settings.controls import BY_NAME
from specchat.app.settings.settings import Settings
from specchat.app.storage.attachments import Attachment
from specchat.app.ui import slash
from specchat.app.ui.actions.chats import ChatActions
from specchat.app.ui.actions.scope import ActionGroup, UnavailableError, in_background
from specchat.app.ui.actions.settings import SettingsActions
from specchat.app.ui.actions.tools import ToolActions
from specchat.app.ui.pump import FRAME_S
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
    _tools: ToolActions

    def send(self, line: str, attachments: tuple[Attachment, ...]) -> None:
        """Send a prompt, or the edited version of one."""
        screen = self._scope.screen
        edited, text = screen.writing.end_edit(), slash.unescaped(line)
        if edited is None:
            if not screen.writing.refused(line, attachments):
                self.ask(text, 1, attachments)
        elif edited in screen.conversation.prompts:
            version = Prompt(text, attachments)
            screen.conversation.add_sibling(edited, version)
            self._scope.requests.send_prompt(screen.conversation, version)
            screen.path_changed()
            screen.follow()
        else:
            screen.writing.take_back([Prompt(text, attachments)])
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
        if not self._scope.conversation.prompts:
            raise UnavailableError(NO_MESSAGES)
        self._choose()

    def command(self, action: str, argument: str = "") -> None:
        """`/edit`, `/regenerate`, `/continue`, `/penalise`, `/fork`, and the number of a message; else the last one."""
        prompts = self._scope.conversation.prompts
        if not prompts:
            raise UnavailableError(NO_MESSAGES)
        if argument and not (argument.isdecimal() and 1 <= int(argument) <= len(prompts)):
            takes = f"the number of a message, 1 to {len(prompts)}, or nothing for the last one"
            raise UsageError(f"/{action} takes {takes}")
        asked = [prompt for prompt in prompts if not prompt.results] if action == "edit" else prompts
        self._do(action, prompts[int(argument) - 1] if argument else asked[-1])

    def show_sibling(self, message: Prompt | Reply | None, step: int) -> None:
        """Switch to another version of a prompt, or another reply, that is `step` places further."""
        if message is not None and 1 <= message.place + step <= len(message.siblings):
            other = message.siblings[message.place + step - 1]
            if isinstance(other, Prompt | Reply):
                self._scope.requests.choose(self._scope.conversation, other)
                self._scope.screen.path_changed()

    @in_background("messages")
    async def _choose(self) -> None:
        chosen = await self._scope.ask(MessagesScreen(self._scope.conversation, self.show_sibling))
        if chosen is not None:
            self._do(chosen[0], self._scope.conversation.prompts[chosen[1]])

    def _do(self, action: str, prompt: Prompt) -> None:
        match action:
            case "go":
                self._scope.screen.go_to(prompt)
            case "edit" if prompt.results:
                raise UnavailableError("results of calls cannot be edited: edit the prompt before them")
            case "edit":
                self._scope.screen.writing.edit(prompt)
                self._scope.screen.back()
                self._scope.screen.go_to(prompt)
            case "regenerate" | "penalise" if prompt.reply is None:
                raise UnavailableError("this prompt waits to be sent: it has no reply yet")
            case "regenerate":
                self._regenerate(prompt)
            case "continue":
                self._continue(prompt)
            case "fork":
                self._fork_chat(prompt)
            case "penalise":
                self._penalise(prompt)

    def on_reply(self, action: str, reply: Reply) -> None:
        """One of the actions of `command` on the message of a reply."""
        prompt = self._scope.conversation.prompt_of(reply)
        if prompt is not None:
            self._do(action, prompt)

    @in_background("asking")
    async def _regenerate(self, prompt: Prompt) -> None:
        settings: Settings | None = self._scope.effective
        if self._scope.effective.sampling().greedy and prompt.reply is not None and prompt.reply.has_text:
            settings = await self._warmer(self._scope.effective)
        if settings is not None and prompt in self._scope.conversation.prompts:
            self._started(branches.regenerate(self._scope.requests, self._scope.conversation, prompt, settings))

    async def _warmer(self, settings: Settings) -> Settings | None:
        """Ask which settings to regenerate with; None to cancel."""
        options = [
            (f"temperature {WARM:g}, this once", "the controls stay as they are"),
            ("the same settings", "the same tokens, if the model is the same"),
        ]
        chosen = await self._scope.choose("another reply", options, f"The reply {why_greedy(settings)}")
        return None if chosen is None else replace(settings, **warmed(settings)) if chosen == 0 else settings

    def _continue(self, prompt: Prompt) -> None:
        reply, called = prompt.reply, prompt.parent
        empty = reply is not None and not (reply.open or reply.has_text)
        if empty and isinstance(called, Reply) and prompt.results and called.unanswered:
            reply = called  # it was stopped before all results were there
        if reply is not None and reply.open and (reply.stopping or (reply.calling and reply.calling.stopped)):
            self._continue_stopped(prompt, reply)
            return
        if reply is None or reply.open:
            raise UnavailableError("the reply is still being written")
        if reply.unanswered:
            self._tools.resume(self._scope.conversation, reply)
            return
        if not reply.has_text:
            raise UnavailableError("the reply has no text to continue: r in the list of messages regenerates it")
        rounds, text = continued(reply)
        started = branches.continue_reply(
            *(self._scope.requests, self._scope.conversation, prompt, rounds),
            text=text,
            stop_repeats=reply.reason is not FinishReason.REPEATS,
        )
        self._started(started)

    @in_background("continue")
    async def _continue_stopped(self, prompt: Prompt, reply: Reply) -> None:
        """Continue a reply once it has stopped, which takes a round."""
        while reply.open:
            await asyncio.sleep(FRAME_S)
        self._continue(prompt)

    def _penalise(self, prompt: Prompt) -> None:
        settings = self._scope.effective
        multiplier = max(2 * (settings.dry_multiplier or 0.0), DRY)
        stronger = replace(settings, dry_multiplier=multiplier)
        self._started(branches.regenerate(self._scope.requests, self._scope.conversation, prompt, stronger))
        self._scope.say(f"trying again with DRY {multiplier:g}, only this time: the controls are unchanged")

    @in_background("fork")
    async def _fork_chat(self, prompt: Prompt) -> None:
        conversation = self._scope.conversation
        if conversation.chat is None or prompt not in conversation.prompts:
            raise UnavailableError("this chat is not stored: it cannot be forked")
        prompts = conversation.prompts[: conversation.prompts.index(prompt) + 1]
        title = fork_title(conversation.title, [chat.title for chat in self._scope.screen.widgets.chats.chats])
        chat = await asyncio.wrap_future(self._scope.archive.fork(conversation, prompts, title))
        if chat is not None:
            self._chats.open(chat)
            self._scope.say(f"forked at message {len(prompts)}: the other chat is unchanged")

    @in_background("asking")
    async def fork_token(self, spot: Spot) -> None:
        """Ask for a replacement of a token, and let the model continue from there."""
        prompt = self._scope.conversation.prompt_of(spot.reply)
        if prompt is None or prompt.reply is not spot.reply:
            return
        fork = fork_at(spot.reply, spot.token)
        likeliest = fork.likeliest or await self._likeliest(prompt, fork)
        alternatives = fork.alternatives(likeliest)
        if not alternatives:
            if likeliest:
                form = spot.reply.constraint
                why = f": the reply follows a {form.kind}" if form else ""
                raise UnavailableError(f"only this token is possible here{why}")
            raise UnavailableError("no other token is known for this position: load the models to see some")
        options = [(f"“{shown(each.text)}”", each.about) for each in alternatives]
        replaced = "" if fork.taken is None else f"Instead of “{shown(fork.taken_text)}”:"
        chosen = await self._scope.choose("fork at a token", options, replaced)
        if chosen is not None and prompt in self._scope.conversation.prompts:
            self._take(prompt, fork, alternatives[chosen])

    async def _likeliest(self, prompt: Prompt, fork: TokenFork) -> tuple[Candidate, ...]:
        """Ask the target for its likeliest tokens at the position; empty if it does not answer."""
        if fork.taken is None:
            return ()
        answer: asyncio.Future[Round | None] = asyncio.get_running_loop().create_future()

        def take(record: Round | None) -> None:
            if not answer.done():
                answer.set_result(record)

        if not branches.look(self._scope.requests, self._scope.conversation, prompt, fork.rounds, DETAIL, take):
            return ()
        try:
            record = await asyncio.wait_for(answer, LOOK_S)
        except TimeoutError:
            return ()
        return record.detail[-1].target if record is not None and record.detail else ()

    def _take(self, prompt: Prompt, fork: TokenFork, alternative: Alternative) -> None:
        scope = self._scope
        self._started(branches.continue_reply(scope.requests, scope.conversation, prompt, fork.rounds, alternative.ids))
        place = f"reply {len(prompt.replies)} of {len(prompt.replies)}"
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
        rounds = rounds_before(reply, reply.starts[-1] + end)
    if reply.reason is FinishReason.EOS and not reply.text.endswith("\n"):
        text += "\n\n"
    return rounds, text


@dataclass(eq=False)
class CandidateActions(ActionGroup):
    """Actions on several replies to one prompt."""

    _controls: SettingsActions
    _messages: MessageActions

    @property
    def prompts(self) -> list[Prompt]:
        """Prompts of the open chat that have or request several replies."""
        return [each for each in self._scope.conversation.prompts if each.wanted > 1 or len(each.replies) > 1]

    def command(self, argument: str) -> None:
        """`/candidates N PROMPT` requests replies; `/candidates` shows the present ones."""
        if not argument:
            self.show()
            return
        number, *prompt = argument.split(maxsplit=1)
        if not number.isdecimal() or not 2 <= int(number) <= MAX_CANDIDATES or not prompt:
            raise UsageError(f"/candidates takes a number from 2 to {MAX_CANDIDATES} followed by a prompt")
        self._ask(int(number), prompt[0], self._scope.effective)

    def show(self) -> None:
        """Show the replies to the latest prompt with several."""
        if not self.prompts:
            raise UnavailableError("this chat has no prompt with several replies: /candidates 4 PROMPT requests four")
        prompt = self.prompts[-1]
        screen = CandidatesScreen(prompt, self._scope.requests, self._scope.loaded.slots, self._scope.screen.pace)
        self._scope.app.push_screen(screen, partial(self._picked, prompt))

    @in_background("asking")
    async def _ask(self, count: int, prompt: str, settings: Settings) -> None:
        line = f"/candidates {count} {prompt}"
        if settings.sampling().greedy:
            options = [(f"set temperature {WARM:g} and ask", "from now on"), ("ask for one reply", "greedy, as it is")]
            sentence = f"All {count} replies {why_greedy(settings)}"
            chosen = await self._scope.choose("several replies", options, sentence)
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
        if self._scope.conversation.prompts[-1].wanted > 1:  # otherwise the reply says why there is only one
            self.show()

    def _picked(self, prompt: Prompt, index: int | None) -> None:
        if index is not None:
            branches.pick(self._scope.requests, self._scope.conversation, prompt.replies[index])
            self._scope.screen.update()
        if prompt.reply is not None and len(prompt.replies) > 1:
            place = f"reply {prompt.reply.place} of {len(prompt.replies)}"
            self._scope.say(f"continuing with {place} · /candidates shows them again")
