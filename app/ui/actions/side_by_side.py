"""Opening the side-by-side mode from the chat, and closing it again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from specchat.app.chat.conversation import Conversation
from specchat.app.errors import AppError
from specchat.app.sanitize import escape_controls
from specchat.app.settings.settings import Settings
from specchat.app.side_by_side.duet import Duet
from specchat.app.ui.actions.scope import ActionScope
from specchat.app.ui.background import run_in_background
from specchat.app.ui.notices import STILL_STARTING
from specchat.app.ui.screens.side_by_side import SideScreen
from specchat.engine import EngineError

MakeDuet = Callable[[Settings], Duet]
Return = Callable[[Conversation | None], None]


class SideBySide:
    """At most one duet at a time; it is closed before the store is.

    Args:
        scope: What it acts on.
        make: Makes a duet; None where there is nothing to ask (a replay).
        on_return: Called when the mode is left, with the conversation to continue or None.
    """

    def __init__(self, scope: ActionScope, make: MakeDuet | None, on_return: Return) -> None:
        self._scope = scope
        self._make = make
        self._on_return = on_return
        self._duet: Duet | None = None

    @property
    def offered(self) -> bool:
        """Whether the mode can be opened at all."""
        return self._make is not None

    def open(self) -> None:
        """Show the mode, unless the chat's engine is at work: that would slow both lanes."""
        if self._make is None or self._duet is not None:
            return
        settings = self._scope.requests.settings
        if settings is None:
            self._say(STILL_STARTING)
            return
        if self._scope.requests.replies:
            self._say("a reply is being written, and it would slow both lanes: let it end, or stop it")
            return
        try:
            self._duet = self._make(settings)
        except (AppError, EngineError) as error:
            self._say(str(error))
            return
        self._scope.app.push_screen(SideScreen(self._duet, self._scope.archive), self._left)

    async def close(self) -> None:
        """End both lanes, and store what they said."""
        duet, self._duet = self._duet, None
        if duet is not None:
            await asyncio.to_thread(duet.end)

    def _left(self, conversation: Conversation | None) -> None:
        run_in_background(self._scope.app, partial(self._return, conversation), "side")

    async def _return(self, conversation: Conversation | None) -> None:
        await self.close()
        self._on_return(conversation)

    def _say(self, sentence: str) -> None:
        self._scope.app.notify(escape_controls(sentence), severity="warning", markup=False)
