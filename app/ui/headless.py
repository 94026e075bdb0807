"""Draws SVG pictures with the interface but without a terminal: of a trace's end, or of a stored chat."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from textual.pilot import Pilot

from specchat.app.chat.conversation import Conversation
from specchat.app.chat.request_manager import Session
from specchat.app.errors import AppError
from specchat.app.paths import settings_file
from specchat.app.sanitize import escape_controls
from specchat.app.settings.settings import CHAT
from specchat.app.sources.player import Player
from specchat.app.ui.app import SpecChat
from specchat.app.ui.pump import Pace
from specchat.app.ui.rendering.pictures import conversation_svg
from specchat.engine import Record


def trace_svg(records: Sequence[Record], name: str, size: tuple[int, int], theme: str) -> str:
    """The screen at the end of a recorded trace; `size` is columns and lines."""
    now = 0.0
    player = Player(records, name, lambda: now)

    async def draw(app: SpecChat, pilot: Pilot[Any]) -> str:
        nonlocal now
        now = player.duration + 1
        for _ in range(Pace().figures_every):
            app.pump.run()
        await pilot.pause()
        return app.export_screenshot(title=f"specchat · {escape_controls(name)}")

    return _drawn(player, theme, size, draw)


def chat_svg(conversation: Conversation, width: int, theme: str) -> str:
    """A whole conversation, `width` columns wide and as high as it is."""

    async def draw(app: SpecChat, pilot: Pilot[Any]) -> str:
        app.chat_screen.show(conversation)
        app.chat_screen.show_view(CHAT)
        await pilot.pause()
        return conversation_svg(escape_controls(conversation.title), *app.chat_screen.transcript.all_lines())

    return _drawn(Player([]), theme, (width, 40), draw)


def _drawn(
    player: Player, theme: str, size: tuple[int, int], draw: Callable[[SpecChat, Pilot[Any]], Awaitable[str]]
) -> str:
    drawn: list[str] = []
    session = Session(player, settings_file=settings_file())  # next to which are the user's themes
    app = SpecChat(lambda: session, player=player, theme=theme)
    app.animation_level = "none"

    async def pilot_it(pilot: Pilot[Any]) -> None:
        await app.prepared.wait()
        await pilot.pause()
        drawn.append(await draw(app, pilot))
        app.exit(return_code=app.return_code or 0)

    app.run(headless=True, size=size, mouse=False, auto_pilot=pilot_it)
    if app.return_code:
        raise AppError("the picture is not drawn: the interface failed")
    return drawn[0]
