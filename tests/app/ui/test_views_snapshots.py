"""What the views look like: inspector, timeline, steps, Figure 1, panel and definitions."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from textual.pilot import Pilot

from tests.app.stage import Stage, run
from tests.app.views import MEDIUM, NARROW, WIDE, Replay, answered

pytestmark = pytest.mark.slow

Compare = Callable[..., bool]
SIZES = pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])

VIEWS = {
    "inspector_rejected": ("detail", 0.55, "x i"),
    "inspector_correction": ("detail", 0.55, "x i right right right right"),
    "inspector_accepted": ("detail", 0.55, "x i left left"),
    "inspector_of_a_tree": ("tree", 0.5, "x i"),  # a position for which four tokens were offered, and all refused
    "step_drafted": ("detail", 0.5, "x i s"),
    "step_judged": ("detail", 0.5, "x i s s"),
    "step_complete": ("detail", 0.5, "x i s s s"),
    "lanes": ("lanes", 0.5, "i t left left up"),
    "figure_1": ("detail", 0.9, "i l"),
    "definitions": ("detail", 0.5, "i d"),
}
"""A trace, how much of it is played, and the keys that are pressed then."""
LOOKS = {
    "second_choice": ("tree", 0.75, "i" + 8 * " left", "", WIDE),
    "step_through_a_tree": ("tree", 0.5, "i s s s", "", WIDE),
    "inspector_light": (*VIEWS["inspector_correction"], "specchat-light", WIDE),
    "inspector_discarded_medium": ("detail", 0.55, "x x i right", "", MEDIUM),
    "inspector_no_color": (*VIEWS["inspector_rejected"], "", WIDE),
    "step_no_color": (*VIEWS["step_drafted"], "", MEDIUM),
    "step_of_three_lanes": ("lanes", 0.4, "x full_stop full_stop", "", WIDE),
    "lanes_zoomed_light": ("lanes", 0.5, "i t Z left", "specchat-light", WIDE),
    "figure_1_light": ("detail", 1.0, "i l", "specchat-light", WIDE),
    "figure_1_no_color": (*VIEWS["figure_1"], "", WIDE),
    "figure_1_step_and_inspector": ("detail", 0.6, "x i l s", "", WIDE),
    "help_of_a_replay": ("detail", 0.5, "f1", "", WIDE),
}
"""Views at one size; also their theme and the size."""


@SIZES
@pytest.mark.parametrize("view", VIEWS)
def test_view(snap_compare: Compare, view: str, size: tuple[int, int]) -> None:
    trace, share, keys = VIEWS[view]
    replay = Replay(trace)
    assert snap_compare(replay.app, terminal_size=size, run_before=replay.run(share, *keys.split()))


@pytest.mark.parametrize("view", LOOKS)
def test_look(snap_compare: Compare, monkeypatch: pytest.MonkeyPatch, view: str) -> None:
    trace, share, keys, theme, size = LOOKS[view]
    if view.endswith("no_color"):
        monkeypatch.setenv("NO_COLOR", "1")
    replay = Replay(trace, theme=theme)
    assert snap_compare(replay.app, terminal_size=size, run_before=replay.run(share, *keys.split()))


@SIZES
def test_inspector_without_detail(snap_compare: Compare, tmp_path: Path, size: tuple[int, int]) -> None:
    """A chat, while it answers: the rounds so far were run without the inspector."""
    stage = Stage(tmp_path, name="code")
    before = run(stage, partial(answered, count=90), "f6", "left", "up", "up")
    assert snap_compare(stage.app, terminal_size=size, run_before=before)


@SIZES
def test_panel_warns(snap_compare: Compare, size: tuple[int, int]) -> None:
    """A reply that drafting slowed down, on a machine with a GPU."""
    replay = Replay("lanes")

    async def before(pilot: Pilot[None]) -> None:
        await replay.run(0.9, *(("ctrl+g",) if size == NARROW else ()))(pilot)
        replay.screen.widgets.panel.show_load("41 % · 2.1 of 85 GB", 0.08)
        await replay.settle(pilot)

    assert snap_compare(replay.app, terminal_size=size, run_before=before)
