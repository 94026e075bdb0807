"""The panel: its headline, the setup that folds, and nothing while there is nothing to show."""

from pathlib import Path

import pytest

from specchat.app.ui.widgets.panel import AcceptanceCard, Panel, SetUpCard, Speed
from tests.app.stage import Stage
from tests.app.views import NARROW, WIDE, large_number, reply_of, screen_of


async def test_the_measured_speedup_comes_first_and_large_with_its_error(stage: Stage) -> None:
    async with stage.started(WIDE, events=None):
        gain = reply_of(screen_of(stage)).figures.gain
        assert gain is not None
        speed = stage.app.screen.query_one(Speed)
        _, number, error = large_number([row.plain for row in speed.rows()[:3]])
        assert f"{number} {error}" == f"{gain.measured:.2f}× ± {gain.measured * gain.error:.2f}"
        assert speed.region.y < stage.app.screen.query_one(AcceptanceCard).region.y


@pytest.mark.parametrize("size", [WIDE, NARROW])
async def test_the_setup_folds(stage: Stage, size: tuple[int, int]) -> None:
    async with stage.started(size, events=None) as pilot:
        if size == NARROW:
            await stage.press(pilot, "ctrl+g")
        card = stage.app.screen.query_one(SetUpCard)
        assert (card.region.height, card.border_title) == (1, "▸ setup")
        await stage.press(pilot, "f7")
        assert card.region.height == len(card.rows()) + 2
        assert card.border_title == "▾ setup"
        await stage.click(pilot, "#setup")
        assert card.region.height == 1
        assert stage.app.screen is screen_of(stage)  # no definitions were opened


async def test_empty_panels_take_no_room_before_the_first_prompt(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    async with stage.started(WIDE) as pilot:
        screen = screen_of(stage)
        assert screen.query_one("#middle").region.width == WIDE[0]
        await stage.answer(pilot, 10)
        assert screen.query_one("#middle").region.width < WIDE[0] - 60
        await stage.press(pilot, "ctrl+n")
        assert not screen.query_one(Panel).display
        assert screen.query_one("#chats").display


async def test_a_narrow_panel_has_the_setup_before_the_first_prompt(stage: Stage) -> None:
    async with stage.started(NARROW) as pilot:
        await stage.press(pilot, "ctrl+g")
        shown = [card for card in (Speed, AcceptanceCard, SetUpCard) if stage.app.screen.query_one(card).region]
        assert shown == [SetUpCard]
