"""Every key and mouse action of the timeline, on recorded engines and traces."""

from pathlib import Path

import pytest
from textual.events import MouseScrollDown, MouseScrollUp

from specchat.app.ui.widgets.composer import Composer
from specchat.app.ui.widgets.timeline import Timeline
from specchat.app.ui.widgets.transcript import Transcript
from tests.app.stage import Stage
from tests.app.views import NARROW, WIDE, Replay, answered, answering, reply_of, screen_of, spot_of

pytestmark = pytest.mark.slow


async def test_a_round_picked_selects_its_tokens_and_a_token_its_round(stage: Stage) -> None:
    async with answering(stage) as (pilot, screen):
        timeline, rounds = screen.query_one(Timeline), reply_of(screen).rounds
        await stage.press(pilot, "ctrl+l", "t")
        assert timeline.has_focus
        await stage.press(pilot, "left")
        assert spot_of(screen)[0] == rounds[-2].number
        assert f"round {rounds[-2].number + 1}:" in str(timeline.border_subtitle)
        await stage.press(pilot, "home")
        assert spot_of(screen)[0] == 0
        assert str(timeline.border_subtitle).startswith("round 1:")
        await stage.press(pilot, "end")
        assert spot_of(screen)[0] == rounds[-1].number
        await stage.press(pilot, "t", "ctrl+left")
        assert f"round {rounds[-2].number + 1}:" in str(timeline.border_subtitle)


async def test_the_timeline_belongs_to_the_details_in_the_chat_view(stage: Stage) -> None:
    async with answering(stage) as (pilot, screen):
        timeline = screen.query_one(Timeline)
        await stage.press(pilot, "ctrl+g")
        assert not timeline.display
        await stage.press(pilot, "ctrl+l", "t")
        assert timeline.has_focus
        await stage.press(pilot, "t")
        assert isinstance(screen.focused, Transcript)
        await stage.press(pilot, "t", "escape")
        assert not timeline.display
        assert isinstance(screen.focused, Composer)


async def test_a_click_picks_a_round(stage: Stage) -> None:
    async with answering(stage) as (pilot, screen):
        await stage.press(pilot, "ctrl+l", "t", "home")
        await stage.click(pilot, Timeline, offset=(14, 1))
        assert spot_of(screen)[0] == 1


async def test_zoom_keeps_the_round(stage: Stage) -> None:
    async with answering(stage) as (pilot, screen):
        timeline = screen.query_one(Timeline)
        await stage.press(pilot, "ctrl+l", "t", "left", "left")
        before, size = timeline.border_subtitle, timeline.virtual_size.area
        await stage.press(pilot, "z")
        assert timeline.virtual_size.area > size
        assert timeline.border_subtitle == before
        await stage.press(pilot, "Z", "Z")
        assert timeline.virtual_size.area < size


async def test_lanes_of_a_batch_and_the_way_between_them() -> None:
    async with Replay("lanes").started(0.5) as (replay, pilot):
        timeline = replay.screen.query_one(Timeline)
        assert timeline.virtual_size.height == 6
        await replay.press(pilot, "i", "t", "left", "up")
        transcript = replay.screen.transcript
        assert transcript.spot.reply is reply_of(replay.screen, 1)
        await replay.press(pilot, "up")
        assert transcript.spot.reply is reply_of(replay.screen, 0)


async def test_several_replies_to_one_prompt_of_another_chat_are_one_lane(tmp_path: Path) -> None:
    stage = Stage(tmp_path, temperature=0.7)
    async with stage.started(WIDE) as pilot:
        await stage.send(pilot, "/candidates 4 Name a city.")
        await stage.press(pilot, "escape", "ctrl+n")
        await stage.answer(pilot, 10)
        timeline = screen_of(stage).query_one(Timeline)
        assert timeline.virtual_size.height == 4


async def test_rounds_are_a_tab_on_a_narrow_screen(stage: Stage) -> None:
    async with answering(stage, size=NARROW) as (pilot, screen):
        assert not screen.query_one(Timeline).display
        await stage.press(pilot, "ctrl+l", "t")
        assert screen.query_one(Timeline).display
        assert screen.query_one(Timeline).has_focus
        await stage.press(pilot, "escape")
        assert not screen.query_one(Timeline).display


async def test_the_wheel_goes_along_the_time_and_the_end_is_followed_again(stage: Stage) -> None:
    async with stage.after(answered, WIDE) as pilot:
        timeline = screen_of(stage).query_one(Timeline)
        end = timeline.scroll_offset.y
        assert end > 0
        await pilot._post_mouse_events([MouseScrollUp], widget=Timeline, offset=(5, 1))
        await stage.settle(pilot)
        assert timeline.scroll_offset.y < end
        away = timeline.scroll_offset.y
        await stage.give(pilot, 10)
        assert timeline.scroll_offset.y == away
        for _ in range(30):
            await pilot._post_mouse_events([MouseScrollDown], widget=Timeline, offset=(5, 1))
        await stage.settle(pilot)
        await stage.give(pilot, 10)
        assert timeline.scroll_offset.y == timeline.max_scroll_y > end
