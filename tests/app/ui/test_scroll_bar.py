"""The bar beside a conversation is drawn where it has moved by as much as can be seen."""

from __future__ import annotations

from specchat.app.ui.textual_internals import VerticalBar
from specchat.app.ui.widgets.transcript import Transcript
from tests.app.views import NARROW, Replay


async def test_a_bar_is_drawn_again_when_its_thumb_moves() -> None:
    replay = Replay("code")
    async with replay.app.run_test(size=NARROW) as pilot:
        await replay.at(pilot, 0.9)
        transcript = replay.screen.query_one(Transcript)
        bar = transcript.vertical_scrollbar
        assert isinstance(bar, VerticalBar)
        assert transcript.max_scroll_y > 0
        assert (bar.window_virtual_size, bar.window_size) == (transcript.virtual_size.height, transcript.size.height)
        before = bar.render_lines(bar.size.region)
        for position, moved in ((transcript.max_scroll_y, False), (0, True), (0, False)):
            bar._repaint_regions.clear()
            bar.position = position
            assert bool(bar._repaint_regions) is moved
            assert (bar.render_lines(bar.size.region) != before) is (position == 0)
        bar._repaint_regions.clear()
        bar.window_virtual_size *= 3
        assert bar._repaint_regions
