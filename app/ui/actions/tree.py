"""What the user does with messages that are there already: edit, ask again, continue, fork, go to another version."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from specchat.app.chat import branches
from specchat.app.chat.reply import Reply
from specchat.app.chat.rounds import Alternative, TokenFork
from specchat.app.chat.turn import Turn
from specchat.app.settings.settings import Settings
from specchat.app.storage.store import Chat
from specchat.app.ui.actions.candidates import WARM
from specchat.app.ui.actions.scope import ActionScope
from specchat.app.ui.background import run_in_background
from specchat.app.ui.notices import STILL_STARTING, say
from specchat.app.ui.rendering.token_cursor import Spot
from specchat.app.ui.rendering.verdict import shown
from specchat.app.ui.screens.choice import ChoiceScreen
from specchat.app.ui.screens.inspection import DETAIL
from specchat.app.ui.screens.messages import MessageAction, MessagesScreen
from specchat.engine import Candidate, FinishReason, Round

LOOK_S = 10.0
"""How long to wait for the target's likeliest tokens; the model may be busy with other replies."""


class TreeActions:
    """What the app does with messages of the path.

    Args:
        scope: What it acts on.
        open_chat: Shows another chat.
    """

    def __init__(self, scope: ActionScope, open_chat: Callable[[Chat], None]) -> None:
        self._scope = scope
        self._open_chat = open_chat

    def messages(self) -> None:
        """Show the messages as a list."""
        if not self._scope.screen.conversation.turns:
            say(self._scope.app, "this chat has no messages yet", "warning")
            return
        listed = MessagesScreen(self._scope.screen.conversation, self.show_reply, self.show_version)
        self._scope.app.push_screen(listed, self._given)

    def command(self, action: MessageAction, argument: str) -> bool:
        """`/edit`, `/regenerate`, `/continue`, `/fork`, each with the number of a message or without: the last one."""
        turns = self._scope.screen.conversation.turns
        if not turns:
            say(self._scope.app, "this chat has no messages yet", "warning")
            return False
        if argument and not (argument.isdecimal() and 1 <= int(argument) <= len(turns)):
            sentence = f"/{action} takes the number of a message, 1 to {len(turns)}, or nothing for the last one"
            say(self._scope.app, sentence, "error")
            return False
        self._given((action, turns[int(argument) - 1 if argument else -1]))
        return True

    def of_last(self, action: MessageAction) -> None:
        """Do something with the last message."""
        self.command(action, "")

    def show_reply(self, turn: Turn, step: int) -> None:
        """Go on with the reply that is so many places further on."""
        place = turn.place + step
        if 1 <= place <= len(turn.replies) and turn.reply is not None:
            branches.show_reply(self._scope.requests, self._scope.screen.conversation, turn, turn.replies[place - 1])
            self._scope.screen.path_changed()

    def show_version(self, turn: Turn, step: int) -> None:
        """Go on with the version of the prompt that is so many places further on."""
        number = turn.version + step
        if 1 <= number <= len(turn.versions):
            branches.show_version(self._scope.requests, self._scope.screen.conversation, turn, number)
            self._scope.screen.path_changed()

    def fork_token(self, spot: Spot) -> None:
        """Ask what to put in the place of a token, and let the model go on from there."""
        run_in_background(self._scope.app, partial(self._fork_token, spot), "asking")

    def _given(self, wanted: tuple[MessageAction, Turn] | None) -> None:
        if wanted is None:
            return
        action, turn = wanted
        match action:
            case MessageAction.GO:
                self._scope.screen.go_to(turn)
            case MessageAction.EDIT:
                self._scope.screen.begin_edit(turn)
            case MessageAction.REGENERATE:
                run_in_background(self._scope.app, partial(self._regenerate, turn), "asking")
            case MessageAction.CONTINUE:
                self._continue(turn)
            case MessageAction.FORK:
                run_in_background(self._scope.app, partial(self._fork_chat, turn), "fork")

    async def _regenerate(self, turn: Turn) -> None:
        settings = self._scope.requests.settings
        if settings is None:
            say(self._scope.app, STILL_STARTING, "warning")
            return
        if settings.sampling().greedy and turn.reply is not None and turn.reply.has_text:
            asked = await self._warmer(settings)
            if asked is None:
                return
            settings = asked
        if turn in self._scope.screen.conversation.turns:
            self._begun(branches.regenerate(self._scope.requests, self._scope.screen.conversation, turn, settings))

    async def _warmer(self, settings: Settings) -> Settings | None:
        """The settings to ask again with; None for not at all."""
        why = "temperature is 0" if settings.temperature == 0 else "top-k is 1"
        sentence = f"The reply would be the same: {why}, which always takes the likeliest token."
        options = (
            (f"temperature {WARM:g}, this once", "the controls stay as they are"),
            ("the same settings", "the same tokens, if the model is the same"),
        )
        chosen = await self._scope.app.push_screen_wait(ChoiceScreen("another reply", options, sentence))
        if chosen == 0:
            return replace(settings, temperature=WARM, top_k=0 if settings.top_k == 1 else settings.top_k)
        return None if chosen is None else settings

    def _continue(self, turn: Turn) -> None:
        reply = turn.reply
        if reply is None or reply.running:
            say(self._scope.app, "the reply is still being written", "warning")
        elif not reply.has_text:
            say(self._scope.app, "the reply has no text to go on from: r in the list of messages asks again", "warning")
        else:
            rounds, text = continued(reply)
            self._begun(branches.go_on(self._scope.requests, self._scope.screen.conversation, turn, rounds, text=text))

    async def _fork_chat(self, turn: Turn) -> None:
        conversation = self._scope.screen.conversation
        if self._scope.archive is None or conversation.chat is None or turn not in conversation.turns:
            say(self._scope.app, "this chat is not stored: it cannot be forked", "warning")
            return
        turns = conversation.turns[: conversation.turns.index(turn) + 1]
        chat = await asyncio.wrap_future(
            self._scope.archive.fork(
                turns, f"{conversation.title} (fork)", conversation.system or "", conversation.thinking
            )
        )
        if chat is not None:
            self._open_chat(chat)
            say(self._scope.app, f"forked at message {len(turns)}: the other chat stays as it is")

    async def _fork_token(self, spot: Spot) -> None:
        turn = next((turn for turn in self._scope.screen.conversation.turns if turn.reply is spot.reply), None)
        if turn is None:
            return
        fork = spot.reply.numbered.fork(spot.token)
        likeliest = fork.likeliest or await self._likeliest(turn, fork)
        alternatives = fork.alternatives(likeliest)
        if not alternatives:
            say(self._scope.app, "nothing else is known for this place: the models have to be loaded to say", "warning")
            return
        options = [(f"“{shown(each.text)}”", each.about) for each in alternatives]
        taken = "" if fork.taken is None else f"In place of “{shown(fork.taken_text)}”:"
        chosen = await self._scope.app.push_screen_wait(ChoiceScreen("fork at a token", options, taken))
        if chosen is not None and turn in self._scope.screen.conversation.turns:
            self._take(turn, fork, alternatives[chosen])

    async def _likeliest(self, turn: Turn, fork: TokenFork) -> tuple[Candidate, ...]:
        """What the target finds likeliest at the place, asked for now; nothing if it cannot say."""
        if fork.taken is None:
            return ()
        answer: asyncio.Future[Round | None] = asyncio.get_running_loop().create_future()

        def take(record: Round | None) -> None:
            if not answer.done():
                answer.set_result(record)

        if not branches.look(self._scope.requests, self._scope.screen.conversation, turn, fork.rounds, DETAIL, take):
            return ()
        try:
            record = await asyncio.wait_for(answer, LOOK_S)
        except TimeoutError:
            return ()
        return record.detail[-1].target if record is not None and record.detail else ()

    def _take(self, turn: Turn, fork: TokenFork, alternative: Alternative) -> None:
        if self._begun(
            branches.go_on(self._scope.requests, self._scope.screen.conversation, turn, fork.rounds, alternative.ids)
        ):
            place = f"reply {turn.place} of {len(turn.replies)}"
            say(
                self._scope.app,
                f"{place} goes on from “{shown(alternative.text)}” · /candidates shows both side by side",
            )

    def _begun(self, begun: bool) -> bool:
        if begun:
            self._scope.screen.path_changed()
            self._scope.screen.follow()
        else:
            say(self._scope.app, STILL_STARTING, "warning")
        return begun


def continued(reply: Reply) -> tuple[list[Round], str]:
    """What a reply begins with that continues this one: its rounds, without an end, and the text behind them.

    A reply that had come to its end would only end again: a paragraph begins behind it.
    """
    rounds, text = list(reply.rounds), ""
    if not rounds:
        text = reply.text
    elif reply.reason is FinishReason.EOS:
        rounds = reply.numbered.up_to(_last_emitted(reply))
    if reply.reason is FinishReason.EOS and not reply.text.endswith("\n"):
        text += "\n\n"
    return rounds, text


def _last_emitted(reply: Reply) -> int:
    """The number of the token that ended the reply."""
    record = reply.rounds[-1]
    return reply.starts[-1] + (record.accepted - 1 if record.last is None else len(record.drafted))
