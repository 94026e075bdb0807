"""A reply that grows moves nothing: the screen is not laid out anew."""

from __future__ import annotations

from textual.screen import Screen

from specchat.app.ui.widgets.timeline import Timeline
from tests.app.views import WIDE, Replay


async def test_a_timeline_that_outgrows_its_room_lays_nothing_out() -> None:
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
