"""Figure 1, the definitions, and their keys."""

from specchat.app.ui.screens.help import DefinitionsScreen
from specchat.app.ui.widgets.key_bar import KeyBar
from tests.app.stage import Stage, lines_of
from tests.app.views import WIDE, Replay, answered, answering, reply_of


async def test_figure_1_has_a_line_for_each_round(stage: Stage) -> None:
    async with answering(stage, 20) as (pilot, screen):
        await stage.press(pilot, "ctrl+l", "l")
        numbers = [line[:4].strip() for line in lines_of(stage)]
        assert [n for n in numbers if n.isdigit()] == [str(r.number + 1) for r in reply_of(screen).rounds]
        await stage.press(pilot, "l")
        assert not any(line[:4].strip().isdigit() for line in lines_of(stage))


async def test_definitions_by_key_and_by_click(stage: Stage) -> None:
    async with stage.after(answered, WIDE) as pilot:
        await stage.press(pilot, "ctrl+l", "d")
        assert isinstance(stage.app.screen, DefinitionsScreen)
        await stage.press(pilot, "escape", "escape")
        await stage.click(pilot, "#acceptance")
        assert isinstance(stage.app.screen, DefinitionsScreen)


async def test_a_replay_offers_no_fork() -> None:
    async with Replay().started(0.6) as (replay, pilot):
        await replay.press(pilot, "f6")
        shown = replay.screen.query_one(KeyBar).keys
        assert replay.screen.transcript.spot is not None
        assert "fork here" not in {key.description for key in shown}
