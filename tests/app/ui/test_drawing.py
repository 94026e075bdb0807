"""The event loop reserves a core while it works, and partial updates of the screen equal full ones."""

import asyncio
import random
import threading

import pytest
from rich.style import Style
from textual._compositor import ChopsUpdate
from textual.geometry import Region
from textual.strip import Strip

from specchat.app.ui.event_loop import BusySelector
from specchat.app.ui.textual_internals import NarrowCompositor
from specchat.engine import SpareCore
from tests.app.views import NARROW, WIDE, Replay


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

    core = SpareCore(limits.append, 4)
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(BusySelector(core))) as runner:
        runner.run(main())
    assert seen == [3, 0] * 3


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
