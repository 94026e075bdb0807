"""Which draft model proposed a token, for drafters with several: panel and inspector."""

from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len

from specchat.app.chat.reply import Reply
from specchat.app.ui.widgets.inspector import PlaceCard
from specchat.app.ui.widgets.panel import AcceptanceCard, Panel
from specchat.engine import Proposer, Record, Round
from tests.app.recorded import trace
from tests.app.stage import Stage
from tests.app.views import WIDE, answering, reply_of
from tests.engine.records import make_round

LONG, SHORT = "a-draft-model-with-a-long-name-135M-Instruct", "small"


def records_of_two_drafts() -> list[Record]:
    """A recorded chat in which another draft agrees with the first half of what was drafted."""
    return [with_two(record) if isinstance(record, Round) else record for record in trace("chat")]


def with_two(record: Round) -> Round:
    count = len(record.drafted)
    proposers = (Proposer(LONG, count, count), Proposer(SHORT, count, count // 2)) if count else ()
    return replace(record, proposers=proposers)


@pytest.mark.parametrize("drafter", ["combined", "merged"])
async def test_lines_are_kept_for_several_drafts(tmp_path: Path, drafter: str) -> None:
    records = [
        replace(record, drafter=drafter) if isinstance(record, Round) else record for record in records_of_two_drafts()
    ]
    stage = Stage(tmp_path, records=records, drafter=drafter, draft="one,other")
    async with stage.started(WIDE, events=0) as pilot:
        card = stage.app.screen.query_one(AcceptanceCard)
        height = card.size.height
        await stage.give(pilot, 30)
        assert len(card.metrics.by_draft) == 2
        assert card.size.height == height


async def test_the_panel_of_a_chat_as_it_comes_fits_the_screen(tmp_path: Path) -> None:
    stage = Stage(tmp_path, name="usual", drafter="combined")
    async with stage.started(WIDE, events=0) as pilot:
        panel = stage.app.screen.query_one(Panel)
        for rounds in (0, 10, 40):
            await stage.give(pilot, rounds)
            panel.show_load("", 0.08)
            await pilot.pause()
            assert panel.max_scroll_y == 0
        assert len(panel.query_one(AcceptanceCard).metrics.by_draft) == 2


async def test_the_drafts_of_a_token_and_what_each_is_worth(tmp_path: Path) -> None:
    stage = Stage(tmp_path, records=records_of_two_drafts())
    async with answering(stage) as (pilot, screen):
        reply, card = reply_of(screen), screen.query_one(AcceptanceCard)
        for name, (tested, kept) in reply.metrics.by_draft.items():
            (line,) = [row.plain for row in card.rows() if row.plain.startswith(name[:8])]
            assert line.endswith(f" {kept / tested * 100:.0f} % of {tested}")
            assert cell_len(line) <= card.inner
        assert list(reply.metrics.by_draft) == [LONG, SHORT]
        await stage.press(pilot, "f6")
        transcript, place = screen.transcript, screen.query_one(PlaceCard)
        seen = set()
        for _ in range(4):
            record, token = reply.token(transcript.spot.token)
            named = [row.plain.split()[-1] for row in place.rows() if row.plain.startswith("proposed by")]
            count = len(record.drafted)
            assert len(named) == (token.place < count) + (token.place < count // 2)
            assert named[1:] in ([], [SHORT])
            seen.add(len(named))
            await stage.press(pilot, "left")
        assert seen == {0, 1, 2}
        one = Reply()
        one.add(replace(make_round(), proposers=(Proposer(SHORT, 4, 4),)))
        one.take_figures()
        card.show(one)
        assert one.figures.metrics.by_draft == {SHORT: (4, 4)}
        assert not any(row.plain.startswith(SHORT) for row in card.rows())
