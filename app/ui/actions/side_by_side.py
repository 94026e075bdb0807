"""Opening the side-by-side mode from the chat, and closing it again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from textual.app import App

from specchat.app.chat.archive import Archive
from specchat.app.chat.conversation import Conversation
from specchat.app.chat.request_manager import RequestManager
from specchat.app.errors import AppError
from specchat.app.sanitize import escape_controls
from specchat.app.settings.settings import Settings
from specchat.app.side_by_side.duet import Duet
from specchat.app.ui.background import run_in_background
from specchat.app.ui.notices import STILL_STARTING
from specchat.app.ui.screens.side_by_side import SideScreen
from specchat.engine import EngineError

MakeDuet = Callable[[Settings], Duet]
Return = Callable[[Conversation | None], None]


class SideBySide:
    """At most one duet at a time; it is closed before the store is.

    Args:
        app: Shows the screen and notices, and runs the workers.
        requests: The chat's requests; while one runs, the mode stays closed.
        make: Makes a duet; None where there is nothing to ask (a replay).
        on_return: Called when the mode is left, with the conversation to continue or None.
    """

    def __init__(self, app: App[None], requests: RequestManager, make: MakeDuet | None, on_return: Return) -> None:
        self.archive: Archive | None = None
        """Stores what the lanes say."""
        self._app = app
        self._requests = requests
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
        settings = self._requests.settings
        if settings is None:
            self._say(STILL_STARTING)
            return
        if self._requests.replies:
            self._say("a reply is being written, and it would slow both lanes: let it end, or stop it")
            return
        try:
            self._duet = self._make(settings)
        except (AppError, EngineError) as error:
            self._say(str(error))
            return
        self._app.push_screen(SideScreen(self._duet, self.archive), self._left)

    async def close(self) -> None:
        """End both lanes, and store what they said."""
        duet, self._duet = self._duet, None
        if duet is not None:
            await asyncio.to_thread(duet.end)

    def _left(self, conversation: Conversation | None) -> None:
        run_in_background(self._app, partial(self._return, conversation), "side")

    async def _return(self, conversation: Conversation | None) -> None:
        await self.close()
        self._on_return(conversation)

    def _say(self, sentence: str) -> None:
        self._app.notify(escape_controls(sentence), severity="warning", markup=False)
