"""The side-by-side mode on two recorded lanes, driven step by step."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from textual.pilot import Pilot

from specchat.app.chat.request_manager import Session
from specchat.app.settings.settings import Settings
from specchat.app.side_by_side.duet import Duet
from specchat.app.side_by_side.set_up import lanes
from specchat.app.storage.store import Store
from specchat.app.ui.app import SpecChat
from specchat.app.ui.pump import Pump
from specchat.app.ui.screens.side_by_side import SideScreen
from specchat.engine import Comparison, LaneReady, Order, Ready, Record, Request, Round
from tests.app.recorded import RecordedEngine, trace
from tests.app.stage import NOW, Stage

QUESTION = "Write a short list of what to see in Lisbon in two days."
FOLLOW_UP = "Write the same list again, with one more place at the end."


class RecordedLane(RecordedEngine):
    """A recorded engine that answers how close a choice was, when a test tells it to."""

    def __init__(self, records: list[Record]) -> None:
        super().__init__(records)
        self.gap: float | None = None
        self.asking = False
        self.asked: list[Comparison] = []

    def submit(self, request: Request) -> None:
        self.gap = None
        super().submit(request)

    def ask_gap(self, comparison: Comparison) -> None:
        self.asking = True
        self.asked.append(comparison)

    def answer(self, gap: float) -> None:
        self.gap, self.asking = gap, False


def differing(records: list[Record], number: int = 20) -> list[Record]:
    """The records of a lane with another last token in one round."""
    return [
        replace(r, last=0, last_piece=" and") if isinstance(r, Round) and r.number == number else r for r in records
    ]


class SideStage(Stage):
    """The app, its lanes, and everything around them. With the address of a `server`, the right one is of llama.cpp."""

    def __init__(
        self,
        folder: Path,
        *,
        order: Order = Order.INTERLEAVED,
        server: str | None = None,
        change_right: Callable[[list[Record]], list[Record]] = lambda records: records,
    ) -> None:
        records = trace("side-left"), change_right(trace("side-right" if server is None else "observed"))
        self.left, self.right = self.lanes = tuple(RecordedLane(each) for each in records)
        self.chat_engine = RecordedEngine(trace("chat"))
        self.readies = tuple(next(r for r in each if isinstance(r, Ready)) for each in records)
        self.store = Store(folder / "specchat.db", now=lambda: NOW)
        self.settings = Settings()
        self.loaded = False

        def readies() -> tuple[LaneReady, ...]:
            return tuple(LaneReady(r, 0.0, None, 1.09) for r in self.readies) if self.loaded else ()

        def make(shared: Settings) -> Duet:
            self.duet = Duet(lanes(None, None, shared), (self.left, self.right), order, readies, server)
            return self.duet

        self.app = SpecChat(
            lambda: Session(self.chat_engine, self.settings, self.store),
            pictures=folder,
            now=lambda: NOW,
            make_duet=make,
            begin_side_by_side=True,
        )
        self.app.animation_level = "none"

    @property
    def screen(self) -> SideScreen:
        found = self.app.screen
        assert isinstance(found, SideScreen)
        return found

    @property
    def pumps(self) -> list[Pump]:
        return [self.app.screen.pump] if isinstance(self.app.screen, SideScreen) else []

    async def ready(self, pilot: Pilot[None]) -> None:
        """Load the models of the chat and of the lanes."""
        await self.settle(pilot)
        self.chat_engine.become_ready()
        self.loaded = True
        self.left.become_ready()
        await self.settle(pilot)

    async def send(self, pilot: Pilot[None], text: str = QUESTION) -> str:
        return await super().send(pilot, text)

    async def answer(self, pilot: Pilot[None], count: int | None = None, text: str = QUESTION) -> None:
        """Send a prompt, and let both lanes give this many events (or all) of their replies."""
        await self.send(pilot, text)
        await self.give(pilot, count, count)

    async def give(  # type: ignore[override]
        self, pilot: Pilot[None], left: int | None, right: int | None
    ) -> None:
        """Give a number of events of each lane's reply; None gives all."""
        self.left.give(left)
        self.right.give(right)
        await self.settle(pilot)
