"""Several replies to one prompt: request them, show them next to each other, and continue with one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from specchat.app.chat.conversation import Turn
from specchat.app.errors import UsageError
from specchat.app.settings.controls import BY_COMMAND
from specchat.app.settings.settings import Settings
from specchat.app.ui.actions.scope import ActionScope, UnavailableError, in_background
from specchat.app.ui.actions.settings import SettingsActions
from specchat.app.ui.screens.candidates import CandidatesScreen

MAX_CANDIDATES = 8
WARM = 0.8
"""A temperature at which replies differ and still make sense."""


def why_greedy(settings: Settings) -> str:
    """Why all replies would be the same with greedy settings."""
    why = "temperature is 0" if settings.temperature == 0 else "top-k is 1"
    return f"would be the same: {why}, which always takes the likeliest token."


def warmed(settings: Settings) -> Settings:
    """Greedy settings changed so that replies differ."""
    return replace(settings, temperature=WARM, top_k=0 if settings.top_k == 1 else settings.top_k)


class CandidateActions:
    """Actions on several replies to one prompt.

    Args:
        scope: Shared by all actions.
        settings: Changed if they would make all replies the same.
        send: Sends a prompt that requests so many replies; returns whether its attachments can be read.
    """

    def __init__(self, scope: ActionScope, settings: SettingsActions, send: Callable[[str, int], bool]) -> None:
        self._scope = scope
        self._send = send
        self._settings = settings

    @property
    def turns(self) -> list[Turn]:
        """Turns of the open chat that have or request several replies."""
        return [turn for turn in self._scope.conversation.turns if turn.wanted > 1 or len(turn.replies) > 1]

    def command(self, argument: str) -> None:
        """`/candidates N PROMPT` requests replies; `/candidates` shows the present ones."""
        if not argument:
            self.show()
            return
        number, _, prompt = argument.partition(" ")
        if not number.isdecimal() or not 2 <= int(number) <= MAX_CANDIDATES or not prompt.strip():
            raise UsageError(f"/candidates takes a number from 2 to {MAX_CANDIDATES} followed by a prompt")
        self._ask(int(number), prompt.strip(), self._scope.settings)

    def begin(self) -> None:
        """Put the command in front of the unsent prompt."""
        self._scope.screen.put(f"/candidates 4 {self._scope.screen.typed}")

    def show(self) -> None:
        """Show the replies to the latest prompt with several."""
        if not self.turns:
            raise UnavailableError("this chat has no prompt with several replies: /candidates 4 PROMPT requests four")
        turn = self.turns[-1]
        screen = CandidatesScreen(turn, self._scope.requests, self._scope.models.slots, self._scope.screen.pace)
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
                self._scope.screen.put(line)
                return
            changed = [BY_COMMAND["temp"], BY_COMMAND["top-k"]][: 2 if settings.top_k == 1 else 1]
            if chosen == 1:
                count = 1
            elif not self._settings.use(warmed(settings), changed):
                return
        if not self._send(prompt, count):
            self._scope.screen.put(line)
        elif self._scope.conversation.turns[-1].wanted > 1:  # otherwise the reply says why there is only one
            self.show()

    def _picked(self, turn: Turn, index: int | None) -> None:
        if index is not None:
            self._scope.requests.pick(self._scope.conversation, turn, turn.replies[index])
            self._scope.screen.update()
        if len(turn.replies) > 1:
            self._scope.say(f"continuing with reply {turn.place} of {len(turn.replies)} · /candidates shows them again")
