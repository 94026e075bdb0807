"""When and what is drawn: the event loop reserves a core, frames have a budget, partial updates equal full ones."""

import asyncio
import random
import sys
import threading
from collections.abc import Coroutine
from typing import Any

import pytest
from rich.style import Style
from textual._compositor import ChopsUpdate
from textual.geometry import Region
from textual.strip import Strip

from specchat.app.chat.reply_stage import Stage
from specchat.app.ui.event_loop import BusySelector
from specchat.app.ui.pump import FRAME_S, SHARE, SLOWEST_S, FrameBudget
from specchat.app.ui.textual_internals import NarrowCompositor
from specchat.engine import SpareCore, spare_core
from tests.app.recorded import Clock
from tests.app.views import NARROW, WIDE, Replay
from tests.terminal import Terminal

CORES = 4
BUSY, WAITING = CORES - 1, 0
"""What the kernels' threads are limited to."""


def run_loop(main: Coroutine[Any, Any, None], limits: list[int]) -> None:
    core = SpareCore(limits.append, CORES)
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(BusySelector(core))) as runner:
        runner.run(main)


def test_a_loop_that_waits_leaves_all_cores_to_the_kernels() -> None:
    limits: list[int] = []
    seen: list[int] = []

    async def main() -> None:
        for _ in range(3):
            await asyncio.sleep(0.01)
            seen.append(limits[-1])
            thread = threading.Timer(0.01, lambda: seen.append(limits[-1]))
            thread.start()
            await asyncio.to_thread(thread.join)

    run_loop(main(), limits)
    assert seen == [BUSY, WAITING] * 3


def test_the_core_is_released_when_the_loop_ends() -> None:
    limits: list[int] = []

    async def main() -> None:
        await asyncio.sleep(0.001)
        raise ValueError("over")

    with pytest.raises(ValueError, match="over"):
        run_loop(main(), limits)
    assert limits[-1] == WAITING


@pytest.mark.skipif(spare_core() is None, reason="there is no spare core")
def test_the_app_runs_on_it() -> None:
    script = """
import asyncio
from textual.app import App
from specchat.app.ui.event_loop import run_app
class Says(App):
    def on_mount(self):
        self.exit(message=type(asyncio.get_running_loop()._selector).__name__)
run_app(Says())
"""
    with Terminal(sys.executable, "-c", script) as terminal:
        terminal.wait_for(BusySelector.__name__)


def chosen(costs: list[float], cores: int = 2) -> float:
    """Seconds between frames after frames that cost so much."""
    processor = Clock()
    budget = FrameBudget(cores, processor)
    frame_s = budget.after(Stage.ANSWERING)
    for cost in costs:
        processor.now += cost
        frame_s = budget.after(Stage.ANSWERING)
    return frame_s


@pytest.mark.parametrize(("cost", "cores"), [(0.002, 2), (0.003, 2), (0.004, 4), (0.016, 16)])
def test_drawing_takes_its_share_of_the_cores_and_no_more(cost: float, cores: int) -> None:
    assert cost / chosen([cost] * 60, cores) == pytest.approx(SHARE * cores, rel=0.25)


def test_frames_are_never_slower_than_text_flows_nor_faster_than_can_be_seen() -> None:
    assert chosen([0.1] * 60) == pytest.approx(SLOWEST_S, rel=0.2)
    assert chosen([0.1] * 60) <= SLOWEST_S
    assert chosen([1e-5] * 60) == pytest.approx(FRAME_S, rel=0.25)
    assert chosen([1e-5] * 60) >= FRAME_S


def test_one_dear_frame_changes_little() -> None:
    usual = chosen([0.002] * 60)
    assert chosen([0.002] * 60 + [0.5]) < 1.6 * usual
    assert chosen([0.002] * 60 + [0.5] + [0.002] * 30) == pytest.approx(usual, rel=0.3)


Cell = tuple[str, Style | None]


def cells(strip: Strip) -> list[Cell]:
    """Character and style of each; nothing in these replays is wider than one."""
    return [(character, segment.style) for segment in strip for character in segment.text]


def drawn(update: ChopsUpdate, y: int, x1: int, x2: int) -> list[Cell]:
    """What an update writes into these cells."""
    row: dict[int, Cell] = {}
    for x, strip in update.chops[y].items():
        if strip is not None:
            row |= dict(enumerate(cells(strip), x))
    return [row[x] for x in range(x1, x2)]


@pytest.mark.parametrize("size", [WIDE, NARROW])
async def test_a_part_of_the_screen_looks_as_the_whole_does_there(size: tuple[int, int]) -> None:
    replay, draws = Replay("code"), random.Random(15)
    async with replay.app.run_test(size=size) as pilot:
        await replay.at(pilot, 0.6)
        compositor = replay.screen._compositor
        assert isinstance(compositor, NarrowCompositor)
        whole = [cells(strip) for strip in compositor.render_strips()]
        width, height = size
        for _ in range(60):
            for _ in range(draws.choice((1, 1, 2, 3, 8))):
                x, y = draws.randrange(width), draws.randrange(height)
                changed = Region(x, y, draws.randint(1, width - x), draws.randint(1, min(height - y, 6)))
                compositor._dirty_regions.add(changed)
            update = compositor.render_partial_update()
            for line, x1, x2 in update.spans:
                assert drawn(update, line, x1, x2) == whole[line][x1:x2]
