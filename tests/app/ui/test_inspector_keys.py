"""Every key and mouse action of inspector and timeline, on recorded engines and traces."""

from dataclasses import replace

import pytest

from specchat.app.ui.screens.inspection import DETAIL
from specchat.app.ui.widgets.composer import Composer
from specchat.app.ui.widgets.inspector import ChancesCard, Inspector
from specchat.app.ui.widgets.panel import Panel
from specchat.app.ui.widgets.timeline import Timeline
from specchat.engine import Admitted, Candidate, Detail, Fate, Finished, FinishReason
from tests.app.stage import Stage
from tests.app.views import WIDE, answering, reply_of, spot_of, text_of

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
        await stage.press(pilot, "t", "home")
        await stage.click(pilot, Timeline, offset=(14, 1))
        assert spot_of(screen)[0] == 1
