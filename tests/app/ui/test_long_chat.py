"""A long chat opens at its end; the rest is read and wrapped when the user scrolls there, and nothing jumps."""

import pytest
from textual.pilot import Pilot

from specchat.app.ui.widgets.transcript import Transcript
from specchat.engine import Admitted, Finished, Round, to_json
from tests.app.recorded import trace
from tests.app.stage import Stage, lines_of
from tests.app.storage.helpers import add_turn
from tests.app.views import screen_of

pytestmark = pytest.mark.slow

SIZE, TURNS = (100, 30), 40


def fill(stage: Stage) -> None:
    """A chat of many turns with recorded rounds."""
    records = [r for r in trace("code") if isinstance(r, Admitted | Round | Finished)][:60]
    text = "".join(r.text for r in records if isinstance(r, Round))
    chat = stage.store.create_chat("A long chat").id
    parent = None
    for turn in range(TURNS):
        lines = map(to_json, records)
        parent = add_turn(stage.store, chat, f"Question-{turn}", text, *lines, parent=parent, reason="length")


async def opened(stage: Stage, pilot: Pilot[None]) -> Transcript:
    fill(stage)
    await stage.ready(pilot)
    await stage.press(pilot, "ctrl+b", "home", "enter")
    return screen_of(stage).transcript


def loaded(stage: Stage) -> list[int]:
    """The turns whose rounds have been read."""
    turns = screen_of(stage).conversation.prompts
    return [n for n, turn in enumerate(turns) if turn.reply is not None and turn.reply.loaded]


async def test_what_is_in_sight_stays_while_more_is_laid_out_above(stage: Stage) -> None:
    async with stage.app.run_test(size=SIZE) as pilot:
        transcript = await opened(stage, pilot)
        first = loaded(stage)[0]  # only the end is read
        assert TURNS / 2 < first <= loaded(stage)[-1] == TURNS - 1
        transcript.scroll_to(y=transcript.size.height, animate=False, immediate=True, force=True)
        before = lines_of(stage)
        await stage.settle(pilot)
        assert loaded(stage)[0] < first
        assert lines_of(stage) == before
        for _ in range(TURNS):
            transcript.scroll_home(animate=False, immediate=True, force=True)
            await stage.settle(pilot)
        assert loaded(stage) == list(range(TURNS))
        transcript.scroll_home(animate=False, immediate=True, force=True)
        assert "Question-0" in lines_of(stage)[1]
