"""Comparing two drafters on a reply, and the sentences shown if that is not possible."""

from collections.abc import Callable
from concurrent.futures import Future

import pytest
from textual.pilot import Pilot

from specchat.app.chat.second_reading import said_texts
from specchat.app.ui.screens.alignment import AlignmentScreen
from specchat.app.ui.screens.dialogs import ChoiceScreen
from specchat.app.ui.widgets.alignment import AlignedTokens
from specchat.engine import EngineError
from specchat.engine.tools.evaluate import Alignment
from tests.app.aligned import alignment
from tests.app.stage import Stage, run
from tests.app.views import WIDE, answered

DRAFTERS = ("combined", "head", "suffix")


class Opened:
    """The view over a chat with one reply; readings end when the test ends them."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.asked: list[tuple[str, str]] = []
        self.readings: list[Future[Alignment]] = []

    async def open(self, pilot: Pilot[None]) -> None:
        texts = said_texts((await answered(self.stage, pilot, None)).reply)
        screen = AlignmentScreen(texts, DRAFTERS, ("combined", "suffix"), 4, self.begin)
        self.stage.app.push_screen(screen)
        await self.stage.settle(pilot)

    def begin(self, drafters: tuple[str, str]) -> Future[Alignment]:
        self.asked.append(drafters)
        self.readings.append(Future())
        return self.readings[-1]

    async def give(self, pilot: Pilot[None]) -> None:
        self.readings[-1].set_result(alignment())
        await self.stage.settle(pilot)

    @property
    def screen(self) -> AlignmentScreen:
        shown = self.stage.app.screen
        assert isinstance(shown, AlignmentScreen)
        return shown

    @property
    def place(self) -> int:
        return self.screen.query_one(AlignedTokens).place

    def text(self, selector: str) -> str:
        widget = self.screen.query_one(selector)
        return "\n".join(strip.text.rstrip() for strip in widget.render_lines(widget.outer_size.region))


@pytest.fixture
def opened(stage: Stage) -> Opened:
    return Opened(stage)


def test_a_token_that_only_b_has(snap_compare: Callable[..., bool], opened: Opened) -> None:
    async def before(stage: Stage, pilot: Pilot[None]) -> None:
        await opened.open(pilot)
        await opened.give(pilot)
        await stage.press(pilot, "b", "b")

    assert snap_compare(opened.stage.app, terminal_size=WIDE, run_before=run(opened.stage, before))


@pytest.mark.parametrize(("attached", "why"), [(True, "not here but at the server"), (False, "no model is loaded")])
async def test_what_cannot_be_compared_is_said(stage: Stage, attached: bool, why: str) -> None:
    stage.attached = attached
    async with stage.started(WIDE, events=None) as pilot:
        assert why in await stage.send(pilot, "/drafts combined suffix")
        assert stage.app.screen is stage.app.chat_screen


async def test_another_drafter_takes_the_place_of_one(opened: Opened) -> None:
    async with opened.stage.app.run_test(size=(140, 40)) as pilot:
        await opened.open(pilot)
        assert isinstance(await opened.stage.press(pilot, "2"), ChoiceScreen)
        await opened.stage.press(pilot, "2")  # head, while the first reading is under way
        assert opened.asked == [("combined", "suffix"), ("combined", "head")]
        assert opened.readings[0].cancelled()
        await opened.stage.press(pilot, "1", "2")  # what is B, for A: they are swapped
        await opened.stage.press(pilot, "x")
        assert opened.asked[2:] == [("head", "combined"), ("combined", "head")]
        opened.readings[-1].set_exception(EngineError("the head drafter \x1b[31mfailed"))
        await opened.stage.settle(pilot)
        assert "the head drafter ␛[31mfailed" in " ".join(opened.text("#alignment-legend").split())
        await opened.stage.press(pilot, "x")
        under_way = opened.readings[-1]
        await opened.stage.press(pilot, "escape")
        assert under_way.cancelled()
