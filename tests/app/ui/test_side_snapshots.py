"""What the side-by-side mode looks like, from recorded lanes."""

from collections.abc import Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot

from specchat.engine import Order
from tests.app.side_stage import FOLLOW_UP, SideStage, differing
from tests.app.stage import run
from tests.app.views import MEDIUM, NARROW, WIDE

pytestmark = pytest.mark.slow

Compare = Callable[..., bool]
STATES = {"start": (), "running": (40, 20), "one_finished": (60, None), "both_finished": (None, None)}
"""How many events each lane has given of its reply."""


async def both_finished(stage: SideStage, pilot: Pilot[None]) -> None:
    await stage.ready(pilot)
    await stage.send(pilot)
    await stage.give(pilot, None, None)


async def second_turn(stage: SideStage, pilot: Pilot[None]) -> None:
    await both_finished(stage, pilot)
    await stage.send(pilot, FOLLOW_UP)
    await stage.give(pilot, None, None)


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("step", STATES)
def test_state(snap_compare: Compare, tmp_path: Path, step: str, size: tuple[int, int]) -> None:
    stage, given = SideStage(tmp_path), STATES[step]

    async def before(pilot: Pilot[None]) -> None:
        await stage.ready(pilot)
        if given:
            await stage.send(pilot)
            await stage.give(pilot, *given)

    assert snap_compare(stage.app, terminal_size=size, run_before=before)


async def answered(stage: SideStage, pilot: Pilot[None]) -> None:
    await both_finished(stage, pilot)
    stage.left.answer(0.125)
    await stage.settle(pilot)


def test_different_texts(snap_compare: Compare, tmp_path: Path) -> None:
    stage = SideStage(tmp_path, change_right=differing)
    assert snap_compare(stage.app, terminal_size=WIDE, run_before=run(stage, answered))


def test_narrow_panes(snap_compare: Compare, tmp_path: Path) -> None:
    stage = SideStage(tmp_path)
    assert snap_compare(stage.app, terminal_size=NARROW, run_before=run(stage, both_finished, "ctrl+b"))


def test_medium(snap_compare: Compare, tmp_path: Path) -> None:
    stage = SideStage(tmp_path)
    assert snap_compare(stage.app, terminal_size=MEDIUM, run_before=run(stage, second_turn))


def test_light(snap_compare: Compare, tmp_path: Path) -> None:
    stage = SideStage(tmp_path, theme="specchat-light", exact=True)
    assert snap_compare(stage.app, terminal_size=WIDE, run_before=run(stage, both_finished))


def test_sampled_in_sequence(snap_compare: Compare, tmp_path: Path) -> None:
    stage = SideStage(tmp_path, order=Order.SEQUENTIAL, temperature=0.8, seed=1)
    assert snap_compare(stage.app, terminal_size=WIDE, run_before=run(stage, both_finished))


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_beside_a_server(snap_compare: Compare, tmp_path: Path, size: tuple[int, int]) -> None:
    stage = SideStage(tmp_path, order=Order.SEQUENTIAL, server="http://127.0.0.1:8080")
    keys = ("ctrl+b",) if size == NARROW else ()
    assert snap_compare(stage.app, terminal_size=size, run_before=run(stage, both_finished, *keys))


def test_how_the_clock_counts(snap_compare: Compare, tmp_path: Path) -> None:
    stage = SideStage(tmp_path)
    assert snap_compare(stage.app, terminal_size=WIDE, run_before=run(stage, both_finished, "f1"))
