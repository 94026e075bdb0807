"""Stepping through rounds, in a chat and in a replay."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from textual.pilot import Pilot

from specchat.app.sources.source import Part
from specchat.app.storage.store import Store
from specchat.app.ui.screens.chat import ChatScreen
from specchat.app.ui.widgets.bars import ReplayBar, StepBar
from specchat.engine import Fate
from tests.app.stage import Stage, lines_of
from tests.app.views import WIDE, Replay, answering, reply_of, spot_of, to_draft

pytestmark = pytest.mark.slow


@asynccontextmanager
async def paused(stage: Stage) -> AsyncIterator[tuple[Pilot[None], ChatScreen]]:
    """A reply that is paused at a draft."""
    async with answering(stage, 7) as (pilot, screen):
        await stage.press(pilot, "ctrl+l", "p")
        await to_draft(stage, pilot)
        yield pilot, screen


async def test_a_live_round_in_three_steps(stage: Stage) -> None:
    async with answering(stage, 7) as (pilot, screen):
        reply, bar = reply_of(screen), screen.query_one(StepBar)
        await stage.press(pilot, "ctrl+l", "s")
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
        await stage.press(pilot, "s")
        assert reply.stepping == (record, Part.JUDGED)
        await stage.press(pilot, "s")
        assert reply.stepping is None
        assert reply.rounds[-1] is record
        await stage.press(pilot, "p")
        assert not stage.engine.paused
        assert not bar.display
        await stage.give(pilot)
        assert not reply.running
        await stage.press(pilot, "s")
        assert "this reply has ended" in bar.render().plain


async def test_pending_tokens_are_drawn_once(stage: Stage) -> None:
    """However often the reply is drawn while they are pending: here another token is selected."""
    async with paused(stage) as (pilot, screen):

        def drawn() -> list[str]:
            """The lines of the reply; the legend has the colours that occur, and a selected token has another one."""
            return [line.text for line in screen.transcript.all_lines()[0] if "correction" not in line.text]

        shown = drawn()
        await stage.press(pilot, "left", "left", "right")
        assert drawn() == shown


async def test_pending_tokens_are_not_left_behind(stage: Stage) -> None:
    """After steps the transcript is the same as without them."""
    async with answering(stage, 7) as (pilot, _screen):
        await stage.press(pilot, "ctrl+l", "p", *["s"] * 30, "p")
        stepped = lines_of(stage)
        await stage.press(pilot, "ctrl+r", "ctrl+r", "ctrl+r")
        again = lines_of(stage)
        assert again == stepped[: len(again)]  # a notice has the last line


async def test_a_paused_reply_is_stopped(stage: Stage) -> None:
    async with paused(stage) as (pilot, screen):
        await stage.press(pilot, "escape")
        reply = reply_of(screen)
        assert reply.running
        assert not stage.engine.paused  # nothing is held back once the details are closed
        await stage.press(pilot, "escape")
        assert not reply.running
        assert reply.stepping is None


async def test_closing_while_paused_keeps_what_is_held(stage: Stage) -> None:
    async with paused(stage) as (_pilot, screen):
        held = reply_of(screen).stepping
        assert held is not None
    with Store(stage.database) as store:
        stored = store.messages(store.chats()[0].id)[1]
    assert stored.content.endswith(held[0].text)


async def test_a_replay_steps_forth_and_back() -> None:
    async with Replay().started(0.5) as (replay, pilot):
        done = len(reply_of(replay.screen).rounds)
        await replay.press(pilot, "full_stop", "full_stop", "full_stop", "full_stop")
        assert replay.player.paused
        assert len(reply_of(replay.screen).rounds) == done + 1
        await replay.press(pilot, "comma", "comma")
        assert len(reply_of(replay.screen).rounds) == done - 1
        await replay.press(pilot, "full_stop")
        stepping = reply_of(replay.screen).stepping
        assert stepping[0].number == done - 1


async def test_a_replay_steps_through_a_whole_batch_at_once() -> None:
    async with Replay("lanes").started(0.4, "full_stop", "full_stop") as (replay, pilot):
        replies = [reply_of(replay.screen, turn) for turn in range(3)]
        counts = [len(reply.rounds) for reply in replies]
        for _ in range(5):
            if not any(reply.stepping for reply in replies):
                await replay.press(pilot, "full_stop")
        assert any(reply.stepping for reply in replies)
        assert all(reply.stepping for reply in replies if reply.running)
        await replay.press(pilot, "full_stop", "full_stop")
        grown = [len(reply.rounds) - count for reply, count in zip(replies, counts, strict=True)]
        assert len(set(grown)) == 1
        assert grown[0] > 0


async def test_to_the_next_rejection() -> None:
    async with Replay().started(0.3) as (replay, pilot):
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
    async with Replay().started(0.6, "space") as (replay, pilot):
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
    async with Replay().started(0.5, "full_stop", "full_stop", "space") as (replay, pilot):
        assert not replay.player.paused
        await replay.at(pilot, 1.0)
        reply = reply_of(replay.screen)
        assert not reply.running
        assert [r.number for r in reply.rounds] == list(range(len(reply.rounds)))
        await replay.press(pilot, "full_stop", "r")
        assert not replay.player.paused
        assert replay.player.position == 0


async def test_a_frame_while_the_app_closes_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The widgets of a screen lose their styles before it leaves the stack, and frames still fall due."""
    replay = Replay()
    fallen = []

    def frame(screen: ChatScreen) -> None:
        bar.notify_style_update()  # forgets what it has looked up, as after every change of a style
        replay.app.pump.run()
        fallen.append(screen in replay.app.screen_stack)

    monkeypatch.setattr(ChatScreen, "on_unmount", frame, raising=False)
    async with replay.app.run_test(size=WIDE) as pilot:
        await replay.at(pilot, 0.5)
        bar = replay.screen.query_one(ReplayBar)
    assert fallen == [True]
