"""Single widgets: the header, text areas, scrollbars, and a timeline that grows."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from textual.app import App, ComposeResult
from textual.widgets import Static, TextArea

from specchat.app.ui.rendering.figures import clock_time
from specchat.app.ui.widgets.composer import Composer, WrappedArea
from tests.app.stage import Stage
from tests.app.views import NARROW


@pytest.mark.parametrize(("lenience", "marked"), [(1.0, False), (0.5, True)])
async def test_lenience_is_marked(tmp_path: Path, lenience: float, marked: bool) -> None:
    stage = Stage(tmp_path, lenience=lenience)
    async with stage.started(NARROW):
        assert ("lossy" in str(stage.app.screen.query_one("#models", Static).content)) is marked


@pytest.mark.parametrize("make", [Composer, partial(WrappedArea, compact=True)], ids=["composer", "form"])
async def test_text_is_wrapped_again_when_the_width_changes(make: Callable[[], TextArea]) -> None:
    area = make()

    class Host(App[None]):
        def compose(self) -> ComposeResult:
            yield area

    async with Host().run_test(size=(80, 10)) as pilot:
        area.load_text("x" * 300)
        for width in (80, 77, 70, 90, 79):
            await pilot.resize_terminal(width, 10)
            await pilot.pause()
            drawn = [strip.text.strip() for strip in area.render_lines(area.size.region)]
            assert [line for line in drawn if line] == area.wrapped_document.get_sections(0)


def test_the_clock_of_a_short_replay_has_tenths() -> None:
    assert [clock_time(at, 2.31) for at in (0, 0.44, 2.31)] == ["0.0 s", "0.4 s", "2.3 s"]
    assert [clock_time(at, 75.3) for at in (0, 75.3)] == ["0:00", "1:15"]
