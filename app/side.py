"""Opening the side-by-side mode from the chat, and coming back with the lane to go on from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from app.errors import AppError
from app.sanitize import visible
from app.screens.side_by_side import SideScreen
from engine import EngineError

if TYPE_CHECKING:
    from app.archive import Archive
    from app.conversation import Conversation
    from app.duet import Duet
    from app.settings import Settings
    from app.specchat import SpecChat

MakeDuet = Callable[["Settings"], "Duet"]


class SideBySide:
    """At most one duet at a time; it is closed before the store is.

    Args:
        app: the app it belongs to.
        make: makes a duet; None where there is nothing to ask (a replay).
    """

    def __init__(self, app: SpecChat, make: MakeDuet | None) -> None:
        self._app = app
        self._make = make
        self._archive: Archive | None = None
        self._duet: Duet | None = None

    def connect(self, archive: Archive | None) -> None:
        """What the lanes say is stored here."""
        self._archive = archive

    @property
    def offered(self) -> bool:
        """Whether the mode can be opened at all."""
        return self._make is not None

    def open(self) -> None:
        """Show the mode, unless the chat's engine is at work: that would slow both lanes."""
        if self._make is None or self._duet is not None:
            return
        settings = self._app.settings
        if settings is None:
            self._say("specchat is still starting: try again in a moment")
            return
        if self._app.exchange.replies:
            self._say("a reply is being written, and it would slow both lanes: let it end, or stop it")
            return
        try:
            self._duet = self._make(settings)
        except (AppError, EngineError) as error:
            self._say(str(error))
            return
        self._app.push_screen(SideScreen(self._duet, self._archive), self._left)

    async def close(self) -> None:
        """End both lanes, and store what they said."""
        duet, self._duet = self._duet, None
        if duet is not None:
            await asyncio.to_thread(duet.end)

    def _left(self, conversation: Conversation | None) -> None:
        self._app.run_worker(self._come_back(conversation), group="side", exit_on_error=False)

    async def _come_back(self, conversation: Conversation | None) -> None:
        await self.close()
        self._app.come_back(conversation)

    def _say(self, sentence: str) -> None:
        self._app.notify(visible(sentence), severity="warning", markup=False)
