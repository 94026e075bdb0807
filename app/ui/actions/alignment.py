"""Comparing two drafters on a reply that has ended, token by token."""

from __future__ import annotations

from itertools import permutations

from specchat.app.chat.second_reading import SecondReading, said_texts
from specchat.app.errors import AppError, UsageError
from specchat.app.ui.actions.scope import ActionScope
from specchat.app.ui.notices import say
from specchat.app.ui.screens.alignment import AlignmentScreen
from specchat.engine import unknown_drafter

_NONE = "none"


class AlignmentActions:
    """Opens the view of what A has and B has not."""

    def __init__(self, scope: ActionScope) -> None:
        self._scope = scope
        self._screen: AlignmentScreen | None = None
        """The view as it was shown last: it knows which drafters were compared."""

    @property
    def drafters(self) -> list[str]:
        """What can be compared: all that the loaded models can draft with."""
        return [name for name in self._scope.offer.drafters if name != _NONE]

    @property
    def pairs(self) -> list[str]:
        """Every two of them, as `/drafts` takes them."""
        return [" ".join(two) for two in permutations(self.drafters, 2)]

    def command(self, argument: str) -> bool:
        """`/drafts A B` compares these, `/drafts` those of before; whether it was understood."""
        try:
            self._open(tuple(argument.split()))
        except AppError as error:
            say(self._scope.app, str(error), "warning" if not argument else "error")
            return False
        return True

    def show(self) -> None:
        """Compare the two drafters of before; at first that of the reply and the next best."""
        self.command("")

    def _open(self, names: tuple[str, ...]) -> None:
        screen = self._scope.screen
        reading = SecondReading(self._scope.requests, screen.conversation, screen.reply)
        if names and len(names) != 2:
            raise UsageError("/drafts takes two drafters, as in /drafts combined suffix, or none to choose them there")
        for name in names:
            if name not in self.drafters:
                raise UsageError(unknown_drafter(name, self.drafters))
        if len(self.drafters) < 2:
            raise UsageError("there is only one drafter here: give a draft (--draft, /draft NAME) to compare it with")
        if names and names[0] == names[1]:
            raise UsageError(f"both drafters are {names[0]}: name two different ones")
        chosen = names or self._chosen(screen.reply.drafter)
        self._screen = AlignmentScreen(
            said_texts(screen.reply), self.drafters, (chosen[0], chosen[1]), reading.gamma, reading.begin
        )
        self._scope.app.push_screen(self._screen)

    def _chosen(self, of_reply: str) -> tuple[str, ...]:
        """Those of before, where they are still there; else the reply's own and the best of the others."""
        if self._screen is not None and set(self._screen.chosen) <= set(self.drafters):
            return self._screen.chosen
        first = of_reply if of_reply in self.drafters else self.drafters[0]
        return first, next(name for name in self.drafters if name != first)
