"""The interface without a terminal, for pictures: a trace's end, or a stored chat."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from textual.pilot import Pilot

from app.conversation import Conversation
from app.picture import conversation_svg
from app.player import Player
from app.sanitize import visible
from app.screens.chat import PANEL_EVERY
from app.session import Session
from app.specchat import SpecChat
from engine import Record


def trace_svg(records: Sequence[Record], name: str, size: tuple[int, int], theme: str) -> str:
    """The screen at the end of a recorded trace; `size` is columns and lines."""
    now = 0.0
    player = Player(records, name, lambda: now)
    app = SpecChat(lambda: Session(player), player=player, theme=theme)

    async def draw(pilot: Pilot[Any]) -> str:
        nonlocal now
        await app.workers.wait_for_complete()
        await pilot.pause()
        now = player.duration + 1
        for _ in range(PANEL_EVERY):
            app.pump()
        await pilot.pause()
        return app.export_screenshot(title=f"specchat · {visible(name)}")

    return _drawn(app, size, draw)


def chat_svg(conversation: Conversation, width: int, theme: str) -> str:
    """A whole conversation, `width` columns wide and as high as it is."""
    player = Player([])
    app = SpecChat(lambda: Session(player), player=player, theme=theme)

    async def draw(pilot: Pilot[Any]) -> str:
        await app.workers.wait_for_complete()
        await pilot.pause()
        app.chat_screen.show(conversation)
        app.chat_screen.action_pane("panel")
        await pilot.pause()
        return conversation_svg(visible(conversation.title), *app.chat_screen.drawn())

    return _drawn(app, (width, 40), draw)


def _drawn(app: SpecChat, size: tuple[int, int], draw: Callable[[Pilot[Any]], Awaitable[str]]) -> str:
    drawn: list[str] = []
    app.animation_level = "none"

    async def pilot_it(pilot: Pilot[Any]) -> None:
        drawn.append(await draw(pilot))
        app.exit()

    app.run(headless=True, size=size, mouse=False, auto_pilot=pilot_it)
    return drawn[0]
