"""What the views look like: inspector, timeline, steps, Figure 1, panel and definitions."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.app.stage import Stage, run
from tests.app.views import NARROW, WIDE, Replay, answered

pytestmark = pytest.mark.slow

Compare = Callable[..., bool]


VIEWS = {
    "inspector_rejected": ("detail", 0.55, "x i", NARROW),
    "inspector_rejected_no_color": ("detail", 0.55, "x i", WIDE),
    "inspector_correction": ("detail", 0.55, "x i right right right right", WIDE),
    "inspector_accepted": ("detail", 0.55, "x i left left", WIDE),
    "inspector_of_a_tree": ("tree", 0.5, "x i", WIDE),  # four tokens were offered for a position, and all refused
    "step_drafted": ("detail", 0.5, "x i s", WIDE),
    "step_judged": ("detail", 0.5, "x i s s", WIDE),
    "step_complete": ("detail", 0.5, "x i s s s", NARROW),
    "step_through_a_tree": ("tree", 0.5, "i s s s", WIDE),
    "lanes": ("lanes", 0.5, "i t left left up", WIDE),
    "figure_1": ("detail", 0.9, "i l", WIDE),
    "figure_1_step_and_inspector": ("detail", 0.6, "x i l s", WIDE),
    "definitions": ("detail", 0.5, "i d", WIDE),
    "help_of_a_replay": ("detail", 0.5, "f1", WIDE),
}
"""A trace, how much of it is played, the keys that are pressed then, and the size."""


@pytest.mark.parametrize("view", VIEWS)
def test_view(snap_compare: Compare, monkeypatch: pytest.MonkeyPatch, view: str) -> None:
    trace, share, keys, size = VIEWS[view]
    if view.endswith("no_color"):
        monkeypatch.setenv("NO_COLOR", "1")
    replay = Replay(trace)
    assert snap_compare(replay.app, terminal_size=size, run_before=replay.run(share, *keys.split()))


def test_inspector_without_detail(snap_compare: Compare, tmp_path: Path) -> None:
    """A chat, while it answers: the rounds so far were run without the inspector."""
    stage = Stage(tmp_path, name="code")
    before = run(stage, partial(answered, count=90), "f6", "left", "up", "up")
    assert snap_compare(stage.app, terminal_size=WIDE, run_before=before)
