"""Every key and mouse action of the views, on recorded engines and traces."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.events import MouseScrollDown, MouseScrollUp
from textual.pilot import Pilot

from app.reply import Part, Reply
from app.screens.chat import ChatScreen
from app.screens.definitions import DefinitionsScreen
from app.screens.looking import DETAIL
from app.widgets.composer import Composer
from app.widgets.inspector import ChancesCard, Inspector, VerdictCard
from app.widgets.panel import Panel
from app.widgets.replay_bar import ReplayBar
from app.widgets.step_bar import StepBar
from app.widgets.timeline import Timeline
from app.widgets.transcript import Transcript
from engine import Fate, Round
from tests.app.stage import Stage
from tests.app.views import NARROW, WIDE, Replay


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def screen_of(stage: Stage) -> ChatScreen:
    found = stage.app.screen
    assert isinstance(found, ChatScreen)
    return found


def reply_of(screen: ChatScreen, turn: int = -1) -> Reply:
    reply = screen.conversation.turns[turn].reply
    assert reply is not None
    return reply


def text_of(widget: VerdictCard | ChancesCard) -> str:
    return "\n".join(line.plain for line in widget.rows())


def spot_of(screen: ChatScreen) -> tuple[int, Fate]:
    """Round and fate of the token that is looked at."""
    spot = screen.query_one(Transcript).spot
    assert spot is not None
    record, token = spot.reply.token(spot.token)
    return record.number, token.fate


async def answered(stage: Stage, pilot: Pilot[None], count: int | None = 70) -> ChatScreen:
    await stage.ready(pilot)
    await stage.answer(pilot, count)
    return screen_of(stage)


async def to_draft(stage: Stage, pilot: Pilot[None]) -> None:
    """Step over plain rounds to the draft of the next one."""
    for _ in range(20):
        if reply_of(screen_of(stage)).stepping is None:
            await stage.press(pilot, "f7")


# Inspector


@pytest.mark.parametrize("key", ["f6"])
async def test_inspector_opens_on_the_last_token_and_closes(stage: Stage, key: str) -> None:
    async with stage.app.run_test(size=WIDE) as pilot:
        screen = await answered(stage, pilot)
        await stage.press(pilot, key)
        assert screen.query_one(Inspector).display
        assert not screen.query_one(Panel).display
        assert spot_of(screen)[0] == reply_of(screen).rounds[-1].number
        await stage.press(pilot, key)
        assert not screen.query_one(Inspector).display
        assert screen.query_one(Panel).display
        assert screen.query_one(Transcript).spot is None
        assert isinstance(screen.focused, Composer)


async def test_escape_closes_the_inspector_and_does_not_stop_the_reply(stage: Stage) -> None:
    async with stage.app.run_test(size=WIDE) as pilot:
        screen = await answered(stage, pilot)
        await stage.press(pilot, "f6", "escape")
        assert not screen.query_one(Inspector).display
        assert not stage.engine.cancelled
        await stage.press(pilot, "escape")
        assert stage.engine.cancelled


async def test_arrows_go_from_token_to_token_and_line_to_line(stage: Stage) -> None:
    async with stage.app.run_test(size=WIDE) as pilot:
        screen = await answered(stage, pilot, None)
        transcript, reply = screen.query_one(Transcript), reply_of(screen)
        await stage.press(pilot, "f6")
        assert transcript.spot is not None
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
    async with stage.app.run_test(size=WIDE) as pilot:
        screen = await answered(stage, pilot)
        await stage.press(pilot, "ctrl+r", "f6", *["left"] * 30)
        await stage.press(pilot, "left")
        assert spot_of(screen)[1] not in (Fate.REJECTED, Fate.DISCARDED)


async def test_from_one_reply_to_the_one_before(stage: Stage) -> None:
    async with stage.app.run_test(size=WIDE) as pilot:
        await answered(stage, pilot, None)
        await stage.answer(pilot, 8, text="again")
        screen, transcript = screen_of(stage), screen_of(stage).query_one(Transcript)
        await stage.press(pilot, "f6", *["up"] * 6)
        assert transcript.spot is not None
        assert transcript.spot.reply is reply_of(screen, 0)


@pytest.mark.parametrize("detail", ["code", "chat"])
async def test_a_click_looks_at_the_token_under_it(tmp_path: Path, detail: str) -> None:
    stage = Stage(tmp_path, name=detail)
    async with stage.app.run_test(size=WIDE) as pilot:
        screen = await answered(stage, pilot)
        transcript = screen.query_one(Transcript)
        lines = [transcript.render_line(y).text for y in range(transcript.size.height)]
        line = next(y for y, text in enumerate(lines) if text[:4].isspace() and text[4:5].strip())
        await pilot.click(Transcript, offset=(5, line))
        await stage.settle(pilot)
        assert screen.query_one(Inspector).display
        assert transcript.spot is not None
        assert transcript.spot.token == 0
        await pilot.click(Transcript, offset=(1, line))  # the margin: nothing is there
        await stage.settle(pilot)
        assert transcript.spot.token == 0


async def test_detail_is_asked_for_while_the_inspector_is_open(stage: Stage) -> None:
    async with stage.app.run_test(size=WIDE) as pilot:
        await answered(stage, pilot, 20)
        running = stage.engine.submitted[0].request_id
        assert stage.engine.submitted[0].detail == 0
        await stage.press(pilot, "f6")
        assert stage.engine.details == [(running, DETAIL)]
        await stage.press(pilot, "escape")
        assert stage.engine.details[1:] == [(running, 0)]
        stage.engine.give()
        await stage.settle(pilot)
        await stage.press(pilot, "f6", "tab")
        screen_of(stage).query_one(Composer).focus()
        await stage.send(pilot, "more")
        assert stage.engine.submitted[1].detail == DETAIL


async def test_inspector_before_the_first_token(stage: Stage) -> None:
    async with stage.app.run_test(size=WIDE) as pilot:
        await stage.ready(pilot)
        await stage.send(pilot)
        await stage.press(pilot, "f6")
        screen = screen_of(stage)
        assert "no token" in text_of(screen.query_one(VerdictCard))
        stage.engine.give(10)
        await stage.settle(pilot)
        assert screen.query_one(Transcript).spot is not None


async def test_what_is_not_recorded_is_said_to_be_so(stage: Stage) -> None:
    async with stage.app.run_test(size=WIDE) as pilot:
        screen = await answered(stage, pilot)
        await stage.press(pilot, "f6", "ctrl+left")
        assert "not recorded for this round" in text_of(screen.query_one(ChancesCard)).replace("\n", " ")
        stage.engine.give()
        await stage.settle(pilot)
        await stage.press(pilot, "ctrl+left")
        assert "not recorded for this reply" in text_of(screen.query_one(ChancesCard)).replace("\n", " ")


async def test_the_inspector_of_a_stored_chat(stage: Stage) -> None:
    async with stage.app.run_test(size=WIDE) as pilot:
        await answered(stage, pilot, None)
        await stage.press(pilot, "ctrl+n", "ctrl+b", "home", "enter", "f6", "left")
        assert spot_of(screen_of(stage))[0] > 0


async def test_another_chat_is_not_looked_at(stage: Stage) -> None:
    async with stage.app.run_test(size=WIDE) as pilot:
        screen = await answered(stage, pilot)
        await stage.press(pilot, "f6", "ctrl+n")
        assert screen.query_one(Transcript).spot is None


# Timeline


async def test_a_round_picked_selects_its_tokens_and_a_token_its_round(stage: Stage) -> None:
    async with stage.app.run_test(size=WIDE) as pilot:
        screen = await answered(stage, pilot)
        timeline, rounds = screen.query_one(Timeline), reply_of(screen).rounds
        await stage.press(pilot, "ctrl+l")
        assert timeline.has_focus
        await stage.press(pilot, "left", "left")
        assert spot_of(screen)[0] == rounds[-2].number
        assert f"round {rounds[-2].number}:" in str(timeline.border_subtitle)
        await stage.press(pilot, "home")
        assert spot_of(screen)[0] == 0
        await stage.press(pilot, "end")
        assert spot_of(screen)[0] == rounds[-1].number
        await stage.press(pilot, "f6", "ctrl+left")
        assert f"round {rounds[-2].number}:" in str(timeline.border_subtitle)


async def test_the_timeline_folds(stage: Stage) -> None:
    async with stage.app.run_test(size=WIDE) as pilot:
        screen = await answered(stage, pilot)
        await stage.press(pilot, "ctrl+l", "ctrl+l")
        assert not screen.query_one(Timeline).display
        assert isinstance(screen.focused, Composer)
        await stage.press(pilot, "ctrl+l")
        assert screen.query_one(Timeline).display


async def test_a_click_picks_a_round(stage: Stage) -> None:
    async with stage.app.run_test(size=WIDE) as pilot:
        screen = await answered(stage, pilot)
        await stage.press(pilot, "ctrl+l", "home")
        await pilot.click(Timeline, offset=(14, 1))
        await stage.settle(pilot)
        assert spot_of(screen)[0] == 1


async def test_zoom_keeps_the_round(stage: Stage) -> None:
    async with stage.app.run_test(size=WIDE) as pilot:
        screen = await answered(stage, pilot)
        timeline = screen.query_one(Timeline)
        await stage.press(pilot, "ctrl+l", "left", "left")
        before, width = timeline.border_subtitle, timeline.virtual_size.width
        await stage.press(pilot, "z")
        assert timeline.virtual_size.width > width
        assert timeline.border_subtitle == before
        await stage.press(pilot, "Z", "Z")
        assert timeline.virtual_size.width < width


async def test_lanes_of_a_batch_and_the_way_between_them() -> None:
    replay = Replay("lanes")
    async with replay.app.run_test(size=WIDE) as pilot:
        await replay.at(pilot, 0.5)
        timeline = replay.screen.query_one(Timeline)
        assert timeline.virtual_size.height == 6
        await replay.press(pilot, "l", "left", "down")
        transcript = replay.screen.query_one(Transcript)
        assert transcript.spot is not None
        assert transcript.spot.reply is reply_of(replay.screen, 1)
        await replay.press(pilot, "down")
        assert transcript.spot.reply is reply_of(replay.screen, 2)


async def test_rounds_are_a_tab_on_a_narrow_screen(stage: Stage) -> None:
    async with stage.app.run_test(size=NARROW) as pilot:
        screen = await answered(stage, pilot)
        assert not screen.query_one(Timeline).display
        await stage.press(pilot, "ctrl+l")
        assert screen.query_one(Timeline).display
        assert screen.query_one(Timeline).has_focus
        await stage.press(pilot, "escape")
        assert not screen.query_one(Timeline).display


# Steps


async def test_a_live_round_in_three_steps(stage: Stage) -> None:
    async with stage.app.run_test(size=WIDE) as pilot:
        screen = await answered(stage, pilot, 7)
        reply, bar = reply_of(screen), screen.query_one(StepBar)
        await stage.press(pilot, "f7")
        assert stage.engine.paused
        assert bar.display
        await to_draft(stage, pilot)
        assert reply.stepping is not None
        done = len(reply.rounds)
        record, part = reply.stepping
        assert record.drafted
        assert part is Part.DRAFTED
        assert "proposes" in bar.render().plain
        assert len(reply.rounds) == done
        await stage.press(pilot, "f7")
        assert reply.stepping == (record, Part.JUDGED)
        await stage.press(pilot, "f7")
        assert reply.stepping is None
        assert reply.rounds[-1] is record
        await stage.press(pilot, "f10")
        assert not stage.engine.paused
        assert not bar.display
        stage.engine.give()
        await stage.settle(pilot)
        assert not reply.running


async def test_pending_tokens_are_not_left_behind(stage: Stage) -> None:
    """After steps the transcript is the same as without them."""
    async with stage.app.run_test(size=WIDE) as pilot:
        screen = await answered(stage, pilot, 7)
        await stage.press(pilot, "f10", *["f7"] * 30, "f10")
        transcript = screen.query_one(Transcript)
        stepped = [transcript.render_line(y).text for y in range(transcript.size.height)]
        await stage.press(pilot, "ctrl+r", "ctrl+r")
        assert [transcript.render_line(y).text for y in range(transcript.size.height)] == stepped


async def test_a_paused_reply_is_stopped(stage: Stage) -> None:
    async with stage.app.run_test(size=WIDE) as pilot:
        screen = await answered(stage, pilot, 7)
        await stage.press(pilot, "f10")
        await to_draft(stage, pilot)
        await stage.press(pilot, "escape")
        reply = reply_of(screen)
        assert not reply.running
        assert reply.stepping is None


async def test_closing_while_paused_keeps_what_is_held(stage: Stage) -> None:
    async with stage.app.run_test(size=WIDE) as pilot:
        screen = await answered(stage, pilot, 7)
        await stage.press(pilot, "f10")
        await to_draft(stage, pilot)
        held = reply_of(screen).stepping
        assert held is not None
    from app.store import Store

    store = Store(stage.database)
    stored = store.messages(store.chats()[0].id)[1]
    store.close()
    assert stored.content.endswith(held[0].text)


async def test_a_replay_steps_forth_and_back() -> None:
    replay = Replay()
    async with replay.app.run_test(size=WIDE) as pilot:
        await replay.at(pilot, 0.5)
        done = len(reply_of(replay.screen).rounds)
        await replay.press(pilot, "full_stop", "full_stop", "full_stop", "full_stop")
        assert replay.player.paused
        assert len(reply_of(replay.screen).rounds) == done + 1
        await replay.press(pilot, "comma", "comma")
        assert len(reply_of(replay.screen).rounds) == done - 1
        await replay.press(pilot, "full_stop")
        stepping = reply_of(replay.screen).stepping
        assert stepping is not None
        assert stepping[0].number == done - 1


async def test_a_replay_steps_through_a_whole_batch_at_once() -> None:
    replay = Replay("lanes")
    async with replay.app.run_test(size=WIDE) as pilot:
        await replay.at(pilot, 0.4)
        await replay.press(pilot, "n", "n")
        replies = [reply_of(replay.screen, turn) for turn in range(3)]
        counts = [len(reply.rounds) for reply in replies]
        while not any(reply.stepping for reply in replies):
            await replay.press(pilot, "n")
        assert all(reply.stepping for reply in replies if reply.running)
        await replay.press(pilot, "n", "n")
        grown = [len(reply.rounds) - count for reply, count in zip(replies, counts, strict=True)]
        assert len(set(grown)) == 1
        assert grown[0] > 0


async def test_to_the_next_rejection() -> None:
    replay = Replay()
    async with replay.app.run_test(size=WIDE) as pilot:
        await replay.at(pilot, 0.3)
        found = []
        for _ in range(3):
            await replay.press(pilot, "x")
            number, fate = spot_of(replay.screen)
            assert fate is Fate.REJECTED
            found.append(number)
        assert found == sorted(set(found))
        await replay.press(pilot, *["x"] * 30)
        assert replay.player.paused


async def test_scrubbing_gives_the_same_replies() -> None:
    replay = Replay()
    async with replay.app.run_test(size=WIDE) as pilot:
        await replay.at(pilot, 0.6)
        await replay.press(pilot, "space")
        at = replay.player.position
        text = reply_of(replay.screen).text
        await replay.press(pilot, "left", "left")
        assert replay.player.position == pytest.approx(at - 2)
        assert len(reply_of(replay.screen).text) < len(text)
        await replay.press(pilot, "right", "right")
        assert reply_of(replay.screen).text == text
        bar = replay.screen.query_one(ReplayBar)
        await pilot.click(ReplayBar, offset=(bar.size.width // 4, 0))
        await replay.settle(pilot)
        assert replay.player.position < at / 2 + 1
        assert text.startswith(reply_of(replay.screen).text)


async def test_a_replay_goes_on_after_steps() -> None:
    replay = Replay()
    async with replay.app.run_test(size=WIDE) as pilot:
        await replay.at(pilot, 0.5)
        await replay.press(pilot, "n", "n", "space")
        assert not replay.player.paused
        await replay.at(pilot, 1.0)
        reply = reply_of(replay.screen)
        assert not reply.running
        assert [r.number for r in reply.rounds] == list(range(len(reply.rounds)))
        await replay.press(pilot, "n", "r")
        assert not replay.player.paused
        assert replay.player.position == 0


# Figure 1, definitions


@pytest.mark.parametrize("key", ["ctrl+f"])
async def test_figure_1_has_a_line_for_each_round(stage: Stage, key: str) -> None:
    async with stage.app.run_test(size=WIDE) as pilot:
        screen = await answered(stage, pilot, 20)
        transcript, reply = screen.query_one(Transcript), reply_of(screen)
        await stage.press(pilot, key)
        numbers = [
            line.split()[0]
            for y in range(transcript.size.height)
            if (line := transcript.render_line(y).text[:4]).strip()
        ]
        assert [n for n in numbers if n.isdigit()] == [str(r.number) for r in reply.rounds]
        await stage.press(pilot, key)
        assert not any(transcript.render_line(y).text[:4].strip().isdigit() for y in range(transcript.size.height))


async def test_definitions_by_key_and_by_click(stage: Stage) -> None:
    async with stage.app.run_test(size=WIDE) as pilot:
        await answered(stage, pilot)
        await stage.press(pilot, "f12")
        assert isinstance(stage.app.screen, DefinitionsScreen)
        await stage.press(pilot, "escape")
        await pilot.click("#acceptance")
        await stage.settle(pilot)
        assert isinstance(stage.app.screen, DefinitionsScreen)


async def test_letters_are_typed_in_the_composer(stage: Stage) -> None:
    async with stage.app.run_test(size=WIDE) as pilot:
        screen = await answered(stage, pilot)
        await stage.press(pilot, *"ilpnfdx")
        assert screen.query_one(Composer).text == "ilpnfdx"
        assert not stage.engine.paused


def test_every_round_has_its_place() -> None:
    """`Reply.token` finds each token of each round."""
    reply = Reply()
    for record in Replay().player._records:
        reply.add(record)
    tokens = [(r.number, token) for r in reply.rounds for token in r.tokens()]
    assert reply.tokens == len(tokens)
    found = [reply.token(number) for number in range(reply.tokens)]
    assert [(record.number, token) for record, token in found] == tokens
    assert all(isinstance(record, Round) for record, _ in found)
    with pytest.raises(IndexError):
        reply.token(reply.tokens)


async def test_the_wheel_goes_along_the_time_and_the_end_is_followed_again(stage: Stage) -> None:
    async with stage.app.run_test(size=WIDE) as pilot:
        await answered(stage, pilot)
        timeline = screen_of(stage).query_one(Timeline)
        end = timeline.scroll_offset.x
        assert end > 0
        await pilot._post_mouse_events([MouseScrollUp], widget=Timeline, offset=(5, 1))
        await stage.settle(pilot)
        assert timeline.scroll_offset.x < end
        away = timeline.scroll_offset.x
        stage.engine.give(10)
        await stage.settle(pilot)
        assert timeline.scroll_offset.x == away
        for _ in range(30):
            await pilot._post_mouse_events([MouseScrollDown], widget=Timeline, offset=(5, 1))
        await stage.settle(pilot)
        stage.engine.give(10)
        await stage.settle(pilot)
        assert timeline.scroll_offset.x == timeline.max_scroll_x > end
