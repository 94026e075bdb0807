"""Screens over the chat: the picture of the cache, the theory, and the tour."""

from collections.abc import Callable

import pytest
from textual.pilot import Pilot
from textual.widgets import Static

from specchat.app.chat.lessons import lessons
from specchat.app.paths import TOUR
from specchat.app.ui.first_prompts import FIRST_PROMPTS
from specchat.app.ui.screens.chat import ChatScreen
from specchat.app.ui.screens.tour import TourScreen
from specchat.app.ui.widgets.masthead import Welcome
from specchat.engine import CachedText, CacheUse, read_trace
from tests.app.stage import Stage, run
from tests.app.views import NARROW, WIDE, answered

pytestmark = pytest.mark.slow


async def two_chats(stage: Stage, pilot: Pilot[None]) -> None:
    """A chat of two replies, and one of a running reply, which shares its beginning; a text without a chat."""
    await answered(stage, pilot, None)
    await stage.answer(pilot, text="Shorter, please.")
    await stage.press(pilot, "ctrl+n")
    await stage.answer(pilot, 4, "What is a monad?")
    first, second, third = (request.request_id for request in stage.engine.submitted)
    known = ((first, 300, 120), ("a question", 3, 0), (second, 100, 0), (third, 409, 0))
    texts = tuple(CachedText(name, own, shared, running=name == third) for name, own, shared in known)
    stage.engine.cache = CacheUse(32, 800_000, 4096, texts, 0.0)


def test_looks_of_the_cache(snap_compare: Callable[..., bool], stage: Stage) -> None:
    assert snap_compare(stage.app, terminal_size=WIDE, run_before=run(stage, two_chats, "alt+k"))


async def of_reply(stage: Stage, pilot: Pilot[None]) -> None:
    await answered(stage, pilot, None)
    await stage.press(pilot, "ctrl+l", "h")


def test_of_a_reply(snap_compare: Callable[..., bool], stage: Stage) -> None:
    assert snap_compare(stage.app, terminal_size=WIDE, run_before=run(stage, of_reply))


async def test_every_part_has_a_screen_and_the_end_is_the_chat(stage: Stage) -> None:
    async with stage.started(WIDE, *"/tour", "enter") as pilot:
        for lesson in lessons(read_trace(TOUR)):
            assert isinstance(stage.app.screen, TourScreen)
            assert str(stage.app.screen.query_one("#tour-said", Static).content).startswith(lesson.sentence)
            await stage.press(pilot, "enter")
        assert isinstance(stage.app.screen, ChatScreen)
        assert not stage.engine.submitted
        assert {"Tour"} <= {command.title for command in stage.app.get_system_commands(stage.app.screen)}


async def test_an_empty_chat_offers_prompts(stage: Stage) -> None:
    async with stage.started(NARROW) as pilot:
        composer = stage.composer
        seen = []
        for _ in range(4):
            await stage.press(pilot, "tab")
            seen.append(composer.text)
        assert seen == [*(prompt.text for prompt in FIRST_PROMPTS), ""]
        welcome = stage.app.screen.query_one(Welcome).render()
        shown = [line.plain for line in welcome.split()]
        place = next(y for y, line in enumerate(shown) if line.startswith("at its worst"))
        assert "/tour" in welcome.plain
        top = (stage.app.screen.query_one(Welcome).size.height - len(shown)) // 2
        await pilot.click(Welcome, offset=(40, top + place))
        assert composer.text == FIRST_PROMPTS[2].text
        await stage.press(pilot, "enter")
        assert stage.engine.submitted[0].messages[-1].content == FIRST_PROMPTS[2].text
        assert await stage.typed(pilot, "tab") == ""


async def tour(stage: Stage, pilot: Pilot[None]) -> None:
    await stage.ready(pilot)
    stage.app.action_run("tour")
    await stage.settle(pilot)


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_looks_of_the_tour(snap_compare: Callable[..., bool], stage: Stage, size: tuple[int, int]) -> None:
    assert snap_compare(stage.app, terminal_size=size, run_before=run(stage, tour, *["right"] * 3))
