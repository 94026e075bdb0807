"""Comparing two drafters on a finished reply, and two set-ups side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import permutations

from specchat.app.chat.conversation import Conversation
from specchat.app.chat.second_reading import SecondReading, said_texts
from specchat.app.errors import AppError, UsageError
from specchat.app.settings.settings import Settings
from specchat.app.side_by_side.duet import Duet
from specchat.app.ui.actions.scope import ActionScope, UnavailableError, in_background
from specchat.app.ui.screens.alignment import AlignmentScreen
from specchat.app.ui.screens.side_by_side import SideScreen
from specchat.engine import EngineError, unknown_drafter

MakeDuet = Callable[[Settings], Duet]


class ComparisonActions:
    """Opens the comparison of drafters and the side-by-side mode.

    Args:
        scope: Shared by all actions.
        make_duet: Makes the two lanes; None in a replay.
        on_return: Called after the side-by-side mode, with the conversation to continue or None.
    """

    def __init__(
        self, scope: ActionScope, make_duet: MakeDuet | None, on_return: Callable[[Conversation | None], None]
    ) -> None:
        self._scope = scope
        self._make_duet = make_duet
        self._on_return = on_return
        self._duet: Duet | None = None
        self._alignment: AlignmentScreen | None = None
        """The screen as it was last shown, with its two drafters."""

    # Two drafters on one reply

    def pairs(self) -> list[str]:
        """Possible arguments of `/drafts`."""
        return [" ".join(two) for two in permutations(self._drafters(), 2)]

    def drafts(self, argument: str = "") -> None:
        """`/drafts A B`: compare these drafters; by default the last pair, or the reply's and the next best."""
        screen, names, drafters = self._scope.screen, argument.split(), self._drafters()
        try:
            reading = SecondReading(self._scope.requests, screen.conversation, screen.reply)
            if names and len(names) != 2:
                raise UsageError("/drafts takes two drafters, as in /drafts combined suffix, or none to choose them")
            for name in names:
                if name not in drafters:
                    raise UsageError(unknown_drafter(name, drafters))
            if len(drafters) < 2:
                raise UsageError("there is only one drafter: load a draft model (--draft, /draft NAME) to compare with")
            if names and names[0] == names[1]:
                raise UsageError(f"both drafters are {names[0]}: name two different ones")
        except AppError as error:
            raise error if argument else UnavailableError(str(error)) from None
        first, second = names or self._default_pair(screen.reply.drafter)
        self._alignment = AlignmentScreen(
            said_texts(screen.reply), drafters, (first, second), reading.gamma, reading.begin
        )
        self._scope.app.push_screen(self._alignment)

    def _drafters(self) -> list[str]:
        return [name for name in self._scope.models.drafters if name != "none"]

    def _default_pair(self, of_reply: str) -> tuple[str, str]:
        """The last pair if it is still available, else the reply's drafter and the best of the others."""
        drafters = self._drafters()
        if self._alignment is not None and set(self._alignment.chosen) <= set(drafters):
            return self._alignment.chosen
        first = of_reply if of_reply in drafters else drafters[0]
        return first, next(name for name in drafters if name != first)

    # Side by side

    @property
    def can_compare(self) -> bool:
        """Whether the side-by-side mode is available."""
        return self._make_duet is not None

    def side_by_side(self) -> None:
        """Open the side-by-side mode, unless a reply is being written: that would slow both lanes."""
        if self._make_duet is None or self._duet is not None:
            return
        settings = self._scope.settings
        if self._scope.requests.replies:
            raise UnavailableError("a reply is being written, and it would slow both lanes: wait for it, or stop it")
        try:
            self._duet = self._make_duet(settings)
        except (AppError, EngineError) as error:
            raise UnavailableError(str(error)) from None
        self._scope.app.push_screen(SideScreen(self._duet, self._scope.archive), self._leave)

    async def close(self) -> None:
        """End both lanes and store their replies. Must run before the store is closed."""
        duet, self._duet = self._duet, None
        if duet is not None:
            await asyncio.to_thread(duet.end)

    @in_background("side")
    async def _leave(self, conversation: Conversation | None) -> None:
        await self.close()
        self._on_return(conversation)
