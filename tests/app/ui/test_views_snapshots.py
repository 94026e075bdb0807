"""What the views look like: inspector, timeline, steps, Figure 1, panel and definitions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot

from tests.app.stage import Stage, run
from tests.app.views import MEDIUM, NARROW, WIDE, Replay

pytestmark = pytest.mark.slow

Compare = Callable[..., bool]
SIZES = pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])

TOKENS = {
    "rejected": ("x", "i"),
    "correction": ("x", "i", "right", "right", "right", "right"),
    "accepted": ("x", "i", "left", "left"),
    "discarded": ("x", "x", "i", "right"),
}
"""Keys from the middle of the trace with detail to a token of each fate."""


@SIZES
@pytest.mark.parametrize("fate", ["rejected", "correction", "accepted"])
def test_inspector(snap_compare: Compare, fate: str, size: tuple[int, int]) -> None:
    replay = Replay()
    assert snap_compare(replay.app, terminal_size=size, run_before=replay.run(0.55, *TOKENS[fate]))


@SIZES
def test_inspector_of_a_tree(snap_compare: Compare, size: tuple[int, int]) -> None:
    """A position for which four tokens were offered, and all refused."""
    replay = Replay("tree")
    assert snap_compare(replay.app, terminal_size=size, run_before=replay.run(0.5, "x", "i"))


def test_inspector_of_a_second_choice(snap_compare: Compare) -> None:
    replay = Replay("tree")
    assert snap_compare(replay.app, terminal_size=WIDE, run_before=replay.run(0.75, "i", *["left"] * 8))


def test_step_through_a_tree(snap_compare: Compare) -> None:
    replay = Replay("tree")
    assert snap_compare(replay.app, terminal_size=WIDE, run_before=replay.run(0.5, "f7", "f7", "f7"))


@pytest.mark.parametrize("theme", ["specchat-light", "nord", "solarized-light"])
def test_inspector_themes(snap_compare: Compare, theme: str) -> None:
    replay = Replay(theme=theme)
    assert snap_compare(replay.app, terminal_size=WIDE, run_before=replay.run(0.55, *TOKENS["correction"]))


def test_inspector_discarded_medium(snap_compare: Compare) -> None:
    replay = Replay()
    assert snap_compare(replay.app, terminal_size=MEDIUM, run_before=replay.run(0.55, *TOKENS["discarded"]))


def test_inspector_no_color(snap_compare: Compare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    replay = Replay()
    assert snap_compare(replay.app, terminal_size=WIDE, run_before=replay.run(0.55, *TOKENS["rejected"]))


@SIZES
def test_inspector_without_detail(snap_compare: Compare, tmp_path: Path, size: tuple[int, int]) -> None:
    """A chat, while it answers: the rounds so far were run without the inspector."""
    stage = Stage(tmp_path, name="code")

    async def answering(stage: Stage, pilot: Pilot[None]) -> None:
        await stage.ready(pilot)
        await stage.answer(pilot, 90)

    keys = ("f6", "left", "up", "up")
    assert snap_compare(stage.app, terminal_size=size, run_before=run(stage, answering, *keys))


@SIZES
@pytest.mark.parametrize("parts", [1, 2, 3], ids=["drafted", "judged", "complete"])
def test_step(snap_compare: Compare, parts: int, size: tuple[int, int]) -> None:
    replay = Replay()
    keys = ("x", "n", "n", "n")[: parts + 1]
    assert snap_compare(replay.app, terminal_size=size, run_before=replay.run(0.5, *keys))


def test_step_light(snap_compare: Compare) -> None:
    replay = Replay(theme="specchat-light")
    assert snap_compare(replay.app, terminal_size=WIDE, run_before=replay.run(0.5, "x", "n"))


def test_step_no_color(snap_compare: Compare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    replay = Replay()
    assert snap_compare(replay.app, terminal_size=MEDIUM, run_before=replay.run(0.5, "x", "n"))


def test_step_of_three_lanes(snap_compare: Compare) -> None:
    replay = Replay("lanes")
    assert snap_compare(replay.app, terminal_size=WIDE, run_before=replay.run(0.4, "x", "n", "n"))


@SIZES
def test_lanes(snap_compare: Compare, size: tuple[int, int]) -> None:
    replay = Replay("lanes")
    assert snap_compare(replay.app, terminal_size=size, run_before=replay.run(0.5, "l", "left", "left", "up"))


def test_lanes_zoomed_light(snap_compare: Compare) -> None:
    replay = Replay("lanes", theme="specchat-light")
    assert snap_compare(replay.app, terminal_size=WIDE, run_before=replay.run(0.5, "l", "Z", "left"))


def test_timeline_folded(snap_compare: Compare) -> None:
    replay = Replay()
    assert snap_compare(replay.app, terminal_size=WIDE, run_before=replay.run(0.5, "l", "l"))


@SIZES
def test_figure_1(snap_compare: Compare, size: tuple[int, int]) -> None:
    replay = Replay()
    assert snap_compare(replay.app, terminal_size=size, run_before=replay.run(0.9, "f"))


def test_figure_1_light(snap_compare: Compare) -> None:
    replay = Replay(theme="specchat-light")
    assert snap_compare(replay.app, terminal_size=WIDE, run_before=replay.run(1.0, "f"))


def test_figure_1_no_color(snap_compare: Compare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    replay = Replay()
    assert snap_compare(replay.app, terminal_size=WIDE, run_before=replay.run(0.9, "f"))


def test_figure_1_step_and_inspector(snap_compare: Compare) -> None:
    replay = Replay()
    assert snap_compare(replay.app, terminal_size=WIDE, run_before=replay.run(0.6, "f", "x", "i", "n"))


@SIZES
def test_panel_warns(snap_compare: Compare, size: tuple[int, int]) -> None:
    """A reply that drafting slowed down, on a machine with a GPU."""
    replay = Replay("lanes")

    async def before(pilot: Pilot[None]) -> None:
        await replay.run(0.9, *(("ctrl+g",) if size == NARROW else ()))(pilot)
        replay.screen.status.show_load("41 % · 2.1 of 85 GB", 0.08)
        await replay.settle(pilot)

    assert snap_compare(replay.app, terminal_size=size, run_before=before)


@SIZES
def test_definitions(snap_compare: Compare, size: tuple[int, int]) -> None:
    replay = Replay()
    assert snap_compare(replay.app, terminal_size=size, run_before=replay.run(0.5, "f12"))


def test_help_of_a_replay(snap_compare: Compare) -> None:
    replay = Replay()
    assert snap_compare(replay.app, terminal_size=WIDE, run_before=replay.run(0.5, "f1"))
