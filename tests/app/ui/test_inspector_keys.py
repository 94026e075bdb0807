"""Every key and mouse action of inspector and timeline, on recorded engines and traces."""

from dataclasses import replace
from pathlib import Path

import pytest
from textual.events import MouseScrollDown, MouseScrollUp

from specchat.app.ui.screens.inspection import DETAIL
from specchat.app.ui.widgets.composer import Composer
from specchat.app.ui.widgets.inspector import ChancesCard, Inspector, VerdictCard
from specchat.app.ui.widgets.panel import Panel
from specchat.app.ui.widgets.timeline import Timeline
from specchat.app.ui.widgets.transcript import Transcript
from specchat.engine import Admitted, Candidate, Detail, Fate, Finished, FinishReason
from tests.app.stage import Stage, lines_of
from tests.app.views import NARROW, WIDE, Replay, answered, answering, reply_of, screen_of, spot_of, text_of

pytestmark = pytest.mark.slow


async def test_inspector_opens_on_the_last_token_and_closes(stage: Stage) -> None:
    async with answering(stage) as (pilot, screen):
        await stage.press(pilot, "f6")
        assert screen.query_one(Inspector).display
        assert not screen.query_one(Panel).display
        assert spot_of(screen)[0] == reply_of(screen).rounds[-1].number
        for keys in (("f6",), ("f6", "escape")):
            await stage.press(pilot, *keys)
            assert not screen.query_one(Inspector).display
            assert screen.query_one(Panel).display
            assert screen.transcript.spot is None
            assert isinstance(screen.focused, Composer)
        assert not stage.engine.cancelled
        await stage.press(pilot, "escape")
        assert stage.engine.cancelled


async def test_details_behind_the_tab_of_the_panel_come_forward(stage: Stage) -> None:
    async with answering(stage, None, NARROW) as (pilot, screen):
        for details in ("none are open", "open already"):
            screen.panes.show("panel")
            await stage.press(pilot, "ctrl+l")
            assert screen.query_one(Inspector).size.height, details
        await stage.press(pilot, "ctrl+l")
        assert not screen.query_one(Inspector).size.height


async def test_arrows_go_from_token_to_token_and_line_to_line(stage: Stage) -> None:
    async with answering(stage, None) as (pilot, screen):
        transcript, reply = screen.transcript, reply_of(screen)
        await stage.press(pilot, "f6")
        last = transcript.spot.token
        await stage.press(pilot, "left", "left")
        assert transcript.spot.token == last - 2
        await stage.press(pilot, "right")
        assert transcript.spot.token == last - 1
        await stage.press(pilot, "up")
        above = transcript.spot.token
        assert above < last - 3
        await stage.press(pilot, "down")
        assert transcript.spot.token > above
        await stage.press(pilot, "ctrl+left")
        assert transcript.spot.token in reply.starts


async def test_tokens_that_are_hidden_are_passed_over(stage: Stage) -> None:
    async with answering(stage) as (pilot, screen):
        await stage.press(pilot, "ctrl+r", "f6", *["left"] * 30)
        await stage.press(pilot, "left")
        assert spot_of(screen)[1] not in (Fate.REJECTED, Fate.DISCARDED)


async def test_from_one_reply_to_the_one_before(stage: Stage) -> None:
    async with stage.started(WIDE, events=None) as pilot:
        await stage.answer(pilot, 8, text="again")
        screen, transcript = screen_of(stage), screen_of(stage).transcript
        await stage.press(pilot, "f6", *["up"] * 6)
        assert transcript.spot.reply is reply_of(screen, 0)


@pytest.mark.parametrize("detail", ["code", "chat"])
async def test_a_click_looks_at_the_token_under_it(tmp_path: Path, detail: str) -> None:
    stage = Stage(tmp_path, name=detail)
    async with answering(stage) as (pilot, screen):
        transcript = screen.transcript
        line = next(y for y, text in enumerate(lines_of(stage)) if text[:4].isspace() and text[4:5].strip())
        await stage.click(pilot, Transcript, offset=(5, line))
        assert screen.query_one(Inspector).display
        assert transcript.spot.token == 0
        await stage.click(pilot, Transcript, offset=(1, line))  # the margin: nothing is there
        assert transcript.spot.token == 0


async def test_detail_is_asked_for_while_the_inspector_is_open(stage: Stage) -> None:
    async with stage.started(WIDE, events=20) as pilot:
        running = stage.engine.submitted[0].request_id
        assert stage.engine.submitted[0].detail == 0
        await stage.press(pilot, "f6")
        assert stage.engine.details == [(running, DETAIL)]
        await stage.press(pilot, "escape")
        assert stage.engine.details[1:] == [(running, 0)]
        await stage.give(pilot)
        await stage.press(pilot, "f6", "tab")
        stage.composer.focus()
        await stage.send(pilot, "more")
        assert stage.engine.submitted[1].detail == DETAIL


async def test_inspector_before_the_first_token(stage: Stage) -> None:
    async with stage.started(WIDE) as pilot:
        await stage.send(pilot)
        await stage.press(pilot, "f6")
        screen = screen_of(stage)
        assert "no token" in text_of(screen.query_one(VerdictCard))
        await stage.give(pilot, 10)
        assert screen.transcript.spot is not None


async def test_what_is_not_recorded_is_said_to_be_so(stage: Stage) -> None:
    async with answering(stage) as (pilot, screen):
        await stage.press(pilot, "f6", "ctrl+left")
        assert "not recorded for this round" in text_of(screen.query_one(ChancesCard)).replace("\n", " ")
        await stage.give(pilot)
        await stage.press(pilot, "ctrl+left")
        assert "being computed" in text_of(screen.query_one(ChancesCard))


async def test_what_was_not_recorded_is_computed_when_the_reply_has_ended(stage: Stage) -> None:
    """The inspector opens on the last tested token; its lists come from a pass of their own, and are marked."""
    async with answering(stage, None) as (pilot, screen):
        await stage.press(pilot, "f6")
        spot = screen.transcript.spot
        record, token = spot.reply.token(spot.token)
        assert token.fate in (Fate.ACCEPTED, Fate.REJECTED)
        assert all(not r.tested for r in spot.reply.rounds[record.number + 1 :])
        request, behind = stage.engine.examined[-1]
        before = [each for r in spot.reply.rounds[: record.number] for each in r.emitted]
        assert list(behind) == [*before, *record.drafted[: token.place]]
        detail = Detail((Candidate(token.id, token.text, 0.75),), (), (), 0.5, 0.0)
        name, admitted = request.request_id, spot.reply.rounds[0].position + len(behind)
        stage.engine.tell(
            Admitted(name, admitted, 0, 0.0, 0.0),
            replace(spot.reply.rounds[0], request_id=name, detail=(detail,)),
            Finished(name, FinishReason.LENGTH, "", "", 0.0),
        )
        await stage.settle(pilot)
        shown = text_of(screen.query_one(ChancesCard))
        assert "computed afterwards" in shown
        assert ".75" in shown


async def test_the_inspector_of_a_stored_chat(stage: Stage) -> None:
    async with stage.started(WIDE, "f6", "ctrl+n", events=None) as pilot:
        assert screen_of(stage).transcript.spot is None
        await stage.press(pilot, "ctrl+b", "home", "enter", "f6", "left")
        assert spot_of(screen_of(stage))[0] > 0


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
