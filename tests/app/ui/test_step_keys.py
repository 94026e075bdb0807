"""Stepping through rounds, in a chat and in a replay."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from textual.pilot import Pilot

from specchat.app.sources.source import Part
from specchat.app.storage.store import Store
from specchat.app.ui.screens.chat import ChatScreen
from specchat.app.ui.widgets.bars import ReplayBar, StepBar
from tests.app.stage import Stage
from tests.app.views import Replay, answering, reply_of, to_draft

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
