"""The app on a recorded engine and a store in a temporary folder, driven step by step."""

import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import EllipsisType
from typing import Any, TypeVar

from textual.app import App
from textual.pilot import Pilot
from textual.screen import Screen
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Input, TextArea

from specchat.app.chat.request_manager import Session
from specchat.app.settings.settings import Settings
from specchat.app.storage.store import Store
from specchat.app.ui.app import SpecChat
from specchat.app.ui.pump import Pump
from specchat.app.ui.widgets.composer import Composer
from specchat.app.ui.widgets.transcript import Transcript
from specchat.engine import Record
from tests.app.quiet import all_done, prepared, show_all
from tests.app.recorded import RecordedEngine, trace
from tests.waiting import PATIENCE_S

WIDE = (140, 40)
NOW = 2_000_000.0
QUESTION = "What should I see in Lisbon in two days? Answer with a short list."
FOLLOW_UP = "The list again, with one more place at the end."

Step = Callable[..., Awaitable[None]]
Found = TypeVar("Found")


class Stage:
    """One app and everything around it."""

    def __init__(
        self,
        folder: Path,
        *,
        name: str = "chat",
        records: list[Record] | None = None,
        theme: str = "",
        file: Path | None = None,
        **settings: object,
    ) -> None:
        self.engine = RecordedEngine(records or trace(name))
        self.clock = NOW
        self.database = folder / "specchat.db"
        self.store = Store(self.database, now=lambda: self.clock)
        self.settings = Settings(theme=theme, **settings)  # type: ignore[arg-type]
        self.file = file
        self.attached = False
        """Whether the engine is a server."""
        self.app = SpecChat(lambda: self.prepare(), theme=theme, pictures=folder, now=lambda: self.clock)
        self.app.animation_level = "none"

    def prepare(self) -> Session:
        """The session of the app."""
        return Session(self.engine, self.settings, self.store, settings_file=self.file, attached=self.attached)

    @asynccontextmanager
    async def started(
        self, size: tuple[int, int] = WIDE, *keys: str, events: int | EllipsisType | None = ..., text: str = QUESTION
    ) -> AsyncIterator[Pilot[None]]:
        """Run the app until the models are loaded, or until `events` (or all) of a reply, and press keys."""
        async with self.app.run_test(size=size) as pilot:
            await self.ready(pilot)
            if not isinstance(events, EllipsisType):
                await self.answer(pilot, events, text)
            if keys:
                await self.press(pilot, *keys)
            yield pilot

    @asynccontextmanager
    async def after(self, step: Step, size: tuple[int, int] = WIDE) -> AsyncIterator[Pilot[None]]:
        """Run the app and do a step."""
        async with self.app.run_test(size=size) as pilot:
            await step(self, pilot)
            yield pilot

    @property
    def pumps(self) -> list[Pump]:
        """Pumps of other screens than the chat."""
        return []

    @property
    def said(self) -> list[str]:
        """All notices, the newest last."""
        return [notice.message for notice in self.app._notifications]

    @property
    def composer(self) -> Composer:
        """The composer of the screen, or of the chat below it."""
        found = self.app.screen.query(Composer)
        return found.first() if found else self.app.chat_screen.query_one(Composer)

    def chats(self, *titles: str) -> None:
        """Chats of the days before, the last one newest."""
        for number, title in enumerate(titles):
            self.clock = NOW - (len(titles) - number) * 90_000
            self.store.create_chat(title)
        self.clock = NOW

    async def settle(self, pilot: Pilot[None]) -> None:
        """Wait until everything that has been said is on screen."""
        await prepared(self.app)
        await show_all(pilot.app, self.app.pump, *self.pumps)
        for field in self.app.screen.query("TextArea, Input").results(TextArea | Input):  # type: ignore[arg-type]
            field.cursor_blink = False
        await all_done(pilot.app)

    async def comes(self, pilot: Pilot[None], condition: Callable[[], Found]) -> Found:
        """Wait, with a limit, until the condition holds on a settled screen; returns what it gives then."""
        end = time.monotonic() + PATIENCE_S
        while not (found := condition()):
            assert time.monotonic() < end, "\n".join(lines_of(self))
            await pilot.pause(0.01)
            await self.settle(pilot)
        return found

    async def ready(self, pilot: Pilot[None]) -> None:
        """Load the models."""
        await self.settle(pilot)
        self.engine.become_ready()
        await self.settle(pilot)

    async def send(self, pilot: Pilot[None], text: str = QUESTION) -> str:
        """Put a prompt into the composer and send it; returns the newest notice, if any."""
        await prepared(self.app)
        await all_done(pilot.app)
        self.app.screen.query_one(TextArea).load_text(text)
        await pilot.press("enter")
        await self.settle(pilot)
        return self.said[-1] if self.said else ""

    async def answer(self, pilot: Pilot[None], count: int | None = None, text: str = QUESTION) -> None:
        """Send a prompt, and let the engine give this many events (or all) of the reply."""
        await self.send(pilot, text)
        self.engine.give(count)
        await self.settle(pilot)

    async def give(self, pilot: Pilot[None], count: int | None = None) -> None:
        """Let the engine give this many events (or all) of the replies, and wait until they are on screen."""
        self.engine.give(count)
        await self.settle(pilot)

    async def press(self, pilot: Pilot[None], *keys: str) -> Screen[Any]:
        """Press keys one by one, each after what the one before did, and wait; returns the topmost screen."""
        await prepared(self.app)
        for key in keys:
            await all_done(pilot.app)
            await pilot.press(key)
        await self.settle(pilot)
        return self.app.screen

    async def typed(self, pilot: Pilot[None], *keys: str) -> str:
        """Press keys; returns the text of the composer."""
        await self.press(pilot, *keys)
        return self.composer.text

    async def click(self, pilot: Pilot[None], *widget: str | type[Widget], offset: tuple[int, int] = (0, 0)) -> None:
        """Click on a widget, or else on a cell of the screen, and wait for what that does."""
        await pilot.click(*widget, offset=offset)
        await self.settle(pilot)

    async def click_on(self, pilot: Pilot[None], text: str) -> None:
        """Click on this text of the conversation."""
        await self.click(pilot, Transcript, offset=place_of(self, text))

    async def counted(self, pilot: Pilot[None]) -> None:
        """Let the tokens of what was typed be counted, as they are once nothing is typed for a while."""
        self.app.chat_screen.writing.gauge.look()
        await self.settle(pilot)


def run(stage: Stage, step: Step, *keys: str) -> Callable[[Pilot[None]], Awaitable[None]]:
    """For `snap_compare`: do the step, then press the keys."""

    async def before(pilot: Pilot[None]) -> None:
        await step(stage, pilot)
        if keys:
            await stage.press(pilot, *keys)

    return before


def screen_strips(app: App[Any]) -> list[Strip]:
    """The lines of the topmost screen as they are drawn."""
    return app.screen._compositor.render_strips()


def lines_of(stage: Stage) -> Sequence[str]:
    """The lines of the conversation as they stand."""
    transcript = stage.app.screen.query_one(Transcript)
    return [transcript.render_line(y).text.rstrip() for y in range(transcript.size.height)]


def place_of(stage: Stage, text: str) -> tuple[int, int]:
    """Column and line of this text in the conversation."""
    return next((line.index(text), y) for y, line in enumerate(lines_of(stage)) if text in line)


def what_a_kill_leaves(folder: Path) -> Path:
    """A folder with the files of the store as they are now."""
    killed = folder / "killed"
    killed.mkdir()
    for file in folder.glob("specchat.db*"):
        shutil.copy(file, killed)
    return killed
