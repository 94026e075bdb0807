"""Screens over the chat: the picture of the cache, the theory, and the tour."""

from collections.abc import Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Static

from specchat.app.chat.lessons import lessons
from specchat.app.paths import TOUR
from specchat.app.ui.first_prompts import FIRST_PROMPTS
from specchat.app.ui.screens.chat import ChatScreen
from specchat.app.ui.screens.tour import TourScreen
from specchat.app.ui.widgets.masthead import Welcome
from specchat.engine import (
    CachedText,
    CacheUse,
    Engine,
    EngineConfig,
    Finished,
    FinishReason,
    Message,
    Outbox,
    Request,
    read_trace,
)
from tests.app.stage import Stage, run
from tests.app.views import answered
from tests.terminal import PATIENCE_S

pytestmark = pytest.mark.slow

OTHER = "What is a monad?"


async def two_chats(stage: Stage, pilot: Pilot[None]) -> None:
    """A chat of two replies, and one of a running reply, which shares its beginning; a text without a chat."""
    await answered(stage, pilot, None)
    await stage.answer(pilot, text="Shorter, please.")
    await stage.press(pilot, "ctrl+n")
    await stage.answer(pilot, 4, OTHER)
    first, second, third = (request.request_id for request in stage.engine.submitted)
    stage.engine.cache = CacheUse(
        32,
        800_000,
        4096,
        (
            CachedText(first, 300, 120, running=False), CachedText("a question", 3, 0, running=False),
            CachedText(second, 100, 0, running=False), CachedText(third, 409, 0, running=True),
        ),
        0.0,
    )  # fmt: skip


def test_looks_of_the_cache(snap_compare: Callable[..., bool], stage: Stage) -> None:
    assert snap_compare(stage.app, terminal_size=WIDE, run_before=run(stage, two_chats, "alt+k"))


WIDE, NARROW = (140, 40), (80, 24)
NAMES = ["draft", "verify", "accept", "reject", "correct", "bonus"]


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


@pytest.mark.model
def test_replies_to_offered_prompts_end_by_themselves(default_model: Path) -> None:
    engine, ended = Engine(EngineConfig(default_model.name, default_model.parent, context=1024)), Outbox()
    engine.start()
    sampling = engine.wait_ready().sampling
    for prompt in FIRST_PROMPTS:
        messages = (Message("user", prompt.text),)
        engine.submit(Request(prompt.shows, messages, sampling=sampling, max_tokens=512), ended)
    reasons: list[FinishReason] = []
    while len(reasons) < len(FIRST_PROMPTS):
        event = ended.get(PATIENCE_S)
        assert event is not None
        reasons += [event.reason] if isinstance(event, Finished) else []
    engine.close()
    assert set(reasons) == {FinishReason.EOS}


async def tour(stage: Stage, pilot: Pilot[None]) -> None:
    await stage.ready(pilot)
    stage.app.action_run("tour")
    await stage.settle(pilot)


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_looks_of_the_tour(snap_compare: Callable[..., bool], stage: Stage, size: tuple[int, int]) -> None:
    assert snap_compare(stage.app, terminal_size=size, run_before=run(stage, tour, *["right"] * 3))
