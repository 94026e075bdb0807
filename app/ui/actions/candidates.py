"""Several replies to one prompt: asking for them, showing them, and going on with one."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from specchat.app.chat import branches
from specchat.app.chat.turn import Turn
from specchat.app.settings.controls import BY_COMMAND
from specchat.app.settings.settings import Settings
from specchat.app.ui.actions.scope import ActionScope
from specchat.app.ui.actions.settings import SettingsActions
from specchat.app.ui.background import run_in_background
from specchat.app.ui.notices import STILL_STARTING, say
from specchat.app.ui.screens.candidates import CandidatesScreen
from specchat.app.ui.screens.choice import ChoiceScreen

MOST_CANDIDATES = 8
WARM = 0.8
"""A temperature at which replies differ and still make sense."""


class CandidateActions:
    """What the app does with several replies.

    Args:
        scope: What it acts on.
        settings: Changed where they would make all replies the same.
    """

    def __init__(self, scope: ActionScope, settings: SettingsActions) -> None:
        self._scope = scope
        self._settings = settings

    def command(self, argument: str) -> bool:
        """`/candidates N PROMPT` asks, `/candidates` shows those there are; whether it was understood."""
        if not argument:
            return self.show()
        number, _, prompt = argument.partition(" ")
        if not number.isdecimal() or not 2 <= int(number) <= MOST_CANDIDATES or not prompt.strip():
            sentence = f"/candidates takes a number from 2 to {MOST_CANDIDATES} and a prompt behind it"
            say(self._scope.app, sentence, "error")
            return False
        if self._settings.settings is None:
            say(self._scope.app, STILL_STARTING, "warning")
            return False
        ask = partial(self._ask, int(number), prompt.strip(), self._settings.settings)
        run_in_background(self._scope.app, ask, "asking")
        return True

    def show(self) -> bool:
        """Show the several replies to the latest prompt that has them; whether there are any."""
        turns = [turn for turn in self._scope.screen.conversation.turns if turn.wanted > 1 or len(turn.replies) > 1]
        if not turns:
            sentence = "this chat has no prompt with several replies: /candidates 4 PROMPT asks for four"
            say(self._scope.app, sentence, "warning")
            return False
        candidates = CandidatesScreen(turns[-1], self._scope.requests, self._scope.offer.slots, self._scope.screen.pace)
        self._scope.app.push_screen(candidates, partial(self._picked, turns[-1]))
        return True

    async def _ask(self, count: int, prompt: str, settings: Settings) -> None:
        if settings.sampling().greedy:
            why = "temperature is 0" if settings.temperature == 0 else "top-k is 1"
            sentence = f"All {count} replies would be the same: {why}, which always takes the likeliest token."
            options = (f"set temperature {WARM:g} and ask", "from now on"), ("ask for one reply", "greedy, as it is")
            chosen = await self._scope.app.push_screen_wait(ChoiceScreen("several replies", options, sentence))
            if chosen is None or (chosen == 1 and not self._scope.screen.ask(prompt)):
                self._scope.screen.put(f"/candidates {count} {prompt}")
                return
            if chosen == 1:
                return
            warm = replace(settings, temperature=WARM, top_k=0 if settings.top_k == 1 else settings.top_k)
            changed = [BY_COMMAND["temp"], BY_COMMAND["top-k"]][: 2 if settings.top_k == 1 else 1]
            if not self._settings.use(warm, changed):
                return
        if not self._scope.screen.ask(prompt, count):
            self._scope.screen.put(f"/candidates {count} {prompt}")
            return
        if self._scope.screen.conversation.turns[-1].wanted > 1:  # a single one says why there are none
            self.show()

    def _picked(self, turn: Turn, place: int | None) -> None:
        if place is not None:
            branches.pick(self._scope.requests, self._scope.screen.conversation, turn, turn.replies[place])
            self._scope.screen.update()
        if len(turn.replies) > 1:
            say(self._scope.app, f"reply {turn.place} of {len(turn.replies)} goes on · /candidates shows them again")
