"""The views on recorded traces: a replay that stands where a test wants it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.style import Style
from textual.pilot import Pilot
from textual.renderables.digits import Digits
from textual.screen import Screen

from specchat.app.chat.reply import Reply
from specchat.app.chat.request_manager import Session
from specchat.app.sources.player import Player
from specchat.app.ui.app import SpecChat
from specchat.app.ui.screens.chat import ChatScreen
from specchat.app.ui.widgets.card import Card
from specchat.app.ui.widgets.panel import Speed
from specchat.app.ui.widgets.transcript import Transcript
from specchat.engine import Fate
from tests.app.quiet import prepared, show_all
from tests.app.recorded import Clock, trace
from tests.app.stage import Stage

BOLD = Style(bold=True)
WIDE, MEDIUM, NARROW = (140, 40), (110, 30), (80, 24)


class Replay:
    """A replay of one of the traces that come with specchat, with a clock that a test moves."""

    def __init__(self, name: str = "detail", pictures: Path | None = None) -> None:
        self.clock = Clock()
        self.player = Player(trace(name), f"{name}.jsonl", self.clock)
        self.app = SpecChat(lambda: Session(self.player), player=self.player, pictures=pictures)
        self.app.animation_level = "none"

    @property
    def screen(self) -> ChatScreen:
        """The screen below all others."""
        found = self.app.screen_stack[0]
        assert isinstance(found, ChatScreen)
        return found

    @asynccontextmanager
    async def started(self, share: float, *keys: str) -> AsyncIterator[tuple[Self, Pilot[None]]]:
        """Run the app, play up to this share of the trace, and press keys."""
        async with self.app.run_test(size=WIDE) as pilot:
            await self.at(pilot, share)
            await self.press(pilot, *keys)
            yield self, pilot

    async def at(self, pilot: Pilot[None], share: float) -> None:
        """Play up to this share of the trace."""
        await prepared(self.app)  # that is when the player starts
        self.clock.now += self.player.duration * share - self.player.position
        await self.settle(pilot)

    async def press(self, pilot: Pilot[None], *keys: str) -> Screen[Any]:
        """Press keys one by one, each after what the one before did is on screen; returns the topmost screen."""
        for key in keys:
            await pilot.press(key)
            await self.settle(pilot)
        return self.app.screen

    async def settle(self, pilot: Pilot[None]) -> None:
        """Bring everything that has been said on screen."""
        await show_all(pilot.app, self.app.pump)

    def run(self, share: float, *keys: str) -> Callable[[Pilot[None]], Awaitable[None]]:
        """For `snap_compare`: play, then press the keys."""

        async def before(pilot: Pilot[None]) -> None:
            await self.at(pilot, share)
            await self.press(pilot, *keys)

        return before


def screen_of(stage: Stage) -> ChatScreen:
    found = stage.app.screen
    assert isinstance(found, ChatScreen)
    return found


def reply_of(screen: ChatScreen, turn: int = -1) -> Reply:
    reply = screen.conversation.prompts[turn].reply
    assert reply is not None
    return reply


def text_of(widget: Card) -> str:
    """The lines of a card; large digits as a row."""
    lines = [line.plain for line in widget.rows()]
    if isinstance(widget, Speed) and lines[2:3] and lines[2].endswith("measured speedup"):
        lines[:3] = ["measured     " + " ".join(filter(None, large_number(lines[:3])))]
    return "\n".join(lines)


def large_number(lines: list[str]) -> tuple[str, str, str]:
    """Text next to the first of three lines with large digits, the digits, and text next to the second."""
    console, digits, column = Console(), "", 0
    glyphs = {
        c: ["".join(s.text for s in line) for line in console.render_lines(Digits(c, BOLD))] for c in "0123456789.x"
    }
    rows = [row.ljust(80) for row in lines]
    while found := next(
        (
            (c, len(glyph[2].rstrip()) if c == "." else 3)
            for c, glyph in glyphs.items()
            if all(row[column:].startswith(part[: 1 if c == "." else 3]) for row, part in zip(rows, glyph, strict=True))
        ),
        None,
    ):
        digits, column = digits + found[0], column + found[1]
    return rows[0][column:].strip(), digits.replace("x", "×"), rows[1][column:].strip()


def spot_of(screen: ChatScreen) -> tuple[int, Fate]:
    """Round and fate of the token that is looked at."""
    spot = screen.query_one(Transcript).spot
    record, token = spot.reply.token(spot.token)
    return record.number, token.fate


async def answered(stage: Stage, pilot: Pilot[None], count: int | None = 70) -> ChatScreen:
    await stage.ready(pilot)
    await stage.answer(pilot, count)
    return screen_of(stage)


@asynccontextmanager
async def answering(
    stage: Stage, count: int | None = 70, size: tuple[int, int] = WIDE
) -> AsyncIterator[tuple[Pilot[None], ChatScreen]]:
    """Run the app up to `count` events of a reply, or all."""
    async with stage.app.run_test(size=size) as pilot:
        yield pilot, await answered(stage, pilot, count)


async def to_draft(stage: Stage, pilot: Pilot[None]) -> None:
    """Step over plain rounds to the draft of the next one; the details are shown."""
    for _ in range(20):
        if reply_of(screen_of(stage)).stepping is None:
            await stage.press(pilot, "s")
