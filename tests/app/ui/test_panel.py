"""The panel and single widgets: headline, setup, plain words, drafts by name, header, text areas; keys of figures."""

from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.text import Text

from specchat.app.ui.rendering.figures import definitions
from specchat.app.ui.screens.help import DefinitionsScreen
from specchat.app.ui.widgets.card import Card
from specchat.app.ui.widgets.inspector import PlaceCard
from specchat.app.ui.widgets.panel import AcceptanceCard, SetUpCard
from specchat.engine import Proposer, Record, Round
from tests.app.recorded import trace
from tests.app.stage import Stage
from tests.app.views import NARROW, WIDE, answered, answering, reply_of, screen_of


async def test_the_setup_folds(stage: Stage) -> None:
    async with stage.started(NARROW, "ctrl+g", events=None) as pilot:
        card = stage.app.screen.query_one(SetUpCard)
        assert (card.region.height, card.border_title) == (1, "▸ setup")
        await stage.press(pilot, "f7")
        assert card.region.height == len(card.rows()) + 2
        assert card.border_title == "▾ setup"
        await stage.click(pilot, "#setup")
        assert card.region.height == 1
        assert stage.app.screen is screen_of(stage)  # no definitions were opened


async def test_every_label_of_panel_and_inspector_is_defined(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    labels, row = set(), Card.row

    def noted(card: Card, name: str, *rest: str) -> Text:
        labels.add(name)
        return row(card, name, *rest)

    monkeypatch.setattr(Card, "row", noted)
    async with stage.started(WIDE, "ctrl+l", events=None):
        pass
    assert {"predicted", "verifying several tokens", "target", "round ended"} <= labels
    assert labels <= {figure.label for figure in definitions("figures")}


async def test_definitions_by_key_and_by_click(stage: Stage) -> None:
    async with stage.after(answered, WIDE) as pilot:
        assert isinstance(await stage.press(pilot, "ctrl+l", "d"), DefinitionsScreen)
        await stage.press(pilot, "escape", "escape")
        await stage.click(pilot, "#acceptance")
        assert isinstance(stage.app.screen, DefinitionsScreen)


LONG, SHORT = "a-draft-model-with-a-long-name-135M-Instruct", "small"


def records_of_two_drafts() -> list[Record]:
    """A recorded chat in which another draft agrees with the first half of what was drafted."""
    return [with_two(record) if isinstance(record, Round) else record for record in trace("chat")]


def with_two(record: Round) -> Round:
    count = len(record.drafted)
    proposers = (Proposer(LONG, count, count), Proposer(SHORT, count, count // 2)) if count else ()
    return replace(record, proposers=proposers)


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
