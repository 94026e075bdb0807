"""Searching all chats, and opening one at the place that was found."""

from __future__ import annotations

import asyncio
from functools import partial

from specchat.app.chat.turn import Turn
from specchat.app.storage.search_index import Hit
from specchat.app.ui.actions.chats import ChatActions
from specchat.app.ui.actions.scope import ActionScope
from specchat.app.ui.background import run_in_background
from specchat.app.ui.notices import say
from specchat.app.ui.rendering.found_line import found_word
from specchat.app.ui.screens.search import SearchScreen


class SearchActions:
    """What the app does to find something said before.

    Args:
        scope: What it acts on.
        chats: Opens the chat that was found.
    """

    def __init__(self, scope: ActionScope, chats: ChatActions) -> None:
        self._scope = scope
        self._chats = chats

    def ask(self) -> None:
        """Ask what to search for."""
        if self._scope.archive is None:
            say(self._scope.app, "nothing is stored here: there is nothing to search", "warning")
        else:
            self._scope.app.push_screen(SearchScreen(self._scope.archive.find), self._found)

    def begin(self) -> None:
        """Bring the index up to date, and let the composer know the prompts of all chats."""
        if self._scope.archive is not None:
            self._scope.archive.index()
            run_in_background(self._scope.app, self._remember_prompts, "history")

    async def _remember_prompts(self) -> None:
        prompts = await asyncio.wrap_future(self._scope.archive.prompts()) if self._scope.archive is not None else None
        self._scope.screen.writing.remember_asked(prompts or [])

    def _found(self, hit: Hit | None) -> None:
        if hit is not None:
            run_in_background(self._scope.app, partial(self._open, hit), "open")

    async def _open(self, hit: Hit) -> None:
        opened = await self._chats.show(hit.chat_id)
        if opened is None or self._scope.archive is None or hit.message_id is None:
            return
        turn, changed = opened.reveal(hit.message_id)
        for one in changed:
            self._scope.archive.choose(one)
        if turn is not None:
            self._scope.screen.path_changed()
            part = turn.reply if hit.role == "assistant" and turn.reply is not None else turn
            found = found_word(hit.excerpt, part.prompt if isinstance(part, Turn) else part.text)
            # It may not have been laid out yet.
            self._scope.screen.call_after_refresh(self._scope.screen.go_to, turn, part, found)
