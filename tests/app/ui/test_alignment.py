"""Comparing two drafters on a reply, and the sentences shown if that is not possible."""

from collections.abc import Callable
from concurrent.futures import Future

import pytest
from textual.pilot import Pilot

from specchat.app.chat.second_reading import Had, said_texts
from specchat.app.ui.screens.alignment import AlignmentScreen
from specchat.app.ui.screens.dialogs import ChoiceScreen
from specchat.app.ui.widgets.alignment import AlignedTokens
from specchat.engine import EngineError
from specchat.engine.tools.evaluate import Alignment
from tests.app.aligned import alignment
from tests.app.stage import Stage, run
from tests.app.views import answered

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


@pytest.mark.parametrize("size", [(140, 40), (80, 24)], ids=["wide", "narrow"])
def test_a_token_that_only_b_has(snap_compare: Callable[..., bool], opened: Opened, size: tuple[int, int]) -> None:
    async def before(stage: Stage, pilot: Pilot[None]) -> None:
        await opened.open(pilot)
        await opened.give(pilot)
        await stage.press(pilot, "b", "b")

    assert snap_compare(opened.stage.app, terminal_size=size, run_before=run(opened.stage, before))


@pytest.mark.slow
async def test_letters_go_from_one_to_the_next(opened: Opened) -> None:
    async with opened.stage.app.run_test(size=(80, 24)) as pilot:
        await opened.open(pilot)
        await opened.stage.press(pilot, "a")  # nothing is known yet
        assert opened.place == 0
        await opened.give(pilot)
        aligned = opened.screen.aligned
        only_a, only_b = ([place for place, had in enumerate(aligned.had) if had is each] for each in list(Had)[1:3])
        assert aligned.counts == {Had.BOTH: 44, Had.ONLY_A: 46, Had.ONLY_B: 10, Had.NEITHER: 60}
        for key, place in (("a", only_a[0]), ("a", only_a[1]), ("A", only_a[0]), ("end", 159), ("B", only_b[-1])):
            await opened.stage.press(pilot, key)
            assert opened.place == place
        assert "only B" in opened.text("#alignment-card")
        await opened.stage.press(pilot, "b")
        assert opened.place == only_b[-1]
        assert "no token after this one that only B has" in opened.text("NoticeLine")
        await opened.stage.press(pilot, "home", "down", "up")
        assert opened.place == 0
        assert await opened.stage.press(pilot, "escape") is opened.stage.app.chat_screen


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


async def test_where_no_engine_is_it_says_so(stage: Stage) -> None:
    async with stage.started() as pilot:
        assert "no model is loaded" in await stage.send(pilot, "/drafts combined suffix")
        assert stage.app.screen is stage.app.chat_screen


async def test_at_a_server_it_says_so(stage: Stage) -> None:
    stage.attached = True
    async with stage.started((140, 40), events=None) as pilot:
        assert "not here but at the server" in await stage.send(pilot, "/drafts")
