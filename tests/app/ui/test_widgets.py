"""Single widgets: the header, text areas, scrollbars, and a timeline that grows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from textual.app import App, ComposeResult
from textual.screen import Screen
from textual.widgets import Static, TextArea

from specchat.app.ui.widgets.composer import Composer, WrappedArea
from specchat.app.ui.widgets.timeline import Timeline
from specchat.app.ui.widgets.transcript import Transcript
from tests.app.stage import Stage
from tests.app.views import NARROW, WIDE, Replay


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


async def test_a_scrollbar_shows_size_and_position() -> None:
    replay = Replay("code")
    async with replay.app.run_test(size=NARROW) as pilot:
        await replay.at(pilot, 0.9)
        transcript = replay.screen.query_one(Transcript)
        bar = transcript.vertical_scrollbar
        assert transcript.max_scroll_y > 0
        assert (bar.window_virtual_size, bar.window_size) == (transcript.virtual_size.height, transcript.size.height)
        at_end = bar.render_lines(bar.size.region)
        bar.position = 0
        assert bar.render_lines(bar.size.region) != at_end


async def test_a_growing_timeline_causes_no_layout() -> None:
    replay = Replay("code")
    async with replay.app.run_test(size=WIDE) as pilot:
        await replay.at(pilot, 0.05)
        timeline, layouts = replay.screen.query_one(Timeline), list[Screen[object]]()
        assert timeline.max_scroll_x == 0
        replay.screen.screen_layout_refresh_signal.subscribe(timeline, layouts.append)
        for share in range(6, 100):
            before = len(layouts)
            await replay.at(pilot, share / 100)
            if timeline.max_scroll_x:
                break
        assert timeline.max_scroll_x
        assert timeline.scroll_offset.x == timeline.max_scroll_x
        assert len(layouts) == before
