"""Screens over the chat: the picture of the cache, the theory, and the tour."""

from collections.abc import Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Static

from specchat.app.chat.lessons import lessons
from specchat.app.paths import TOUR
from specchat.app.sources.attached import AttachedEngine
from specchat.app.sources.source import NO_CACHE
from specchat.app.ui.first_prompts import FIRST_PROMPTS
from specchat.app.ui.screens.chat import ChatScreen
from specchat.app.ui.screens.theory import TheoryScreen
from specchat.app.ui.screens.tour import TourScreen
from specchat.app.ui.widgets.masthead import Welcome
from specchat.engine import (
    CachedText,
    CacheUse,
    Engine,
    EngineConfig,
    Fate,
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


def cache_text(stage: Stage) -> str:
    return str(stage.app.screen.query_one("#cache-text", Static).render())


@pytest.mark.parametrize("size", [(140, 40), (80, 24)], ids=["wide", "narrow"])
def test_looks_of_the_cache(snap_compare: Callable[..., bool], stage: Stage, size: tuple[int, int]) -> None:
    assert snap_compare(stage.app, terminal_size=size, run_before=run(stage, two_chats, "alt+k"))


async def test_chats_with_one_title_are_two(stage: Stage) -> None:
    async with stage.started() as pilot:
        for _ in range(2):
            await stage.answer(pilot, text="hi")
            await stage.press(pilot, "ctrl+n")
        texts = (CachedText(request.request_id, 1, 0, running=False) for request in stage.engine.submitted)
        stage.engine.cache = CacheUse(32, 800_000, 16, tuple(texts), 0.0)
        await stage.press(pilot, "alt+k")
        assert cache_text(stage).splitlines()[2] == "ab" + "·" * 14


async def test_chats_have_their_present_titles_and_the_picture_follows(stage: Stage) -> None:
    async with stage.after(two_chats) as pilot:
        await stage.press(pilot, *"/tag rome", "enter", *"/cache", "enter")
        assert "#rome" in cache_text(stage)
        assert stage.engine.cache is not None
        stage.engine.cache = CacheUse(32, 800_000, 4096, (), 1.0)
        stage.engine.show_cache()
        await stage.settle(pilot)
        assert cache_text(stage).startswith("0 of 4,096 blocks")
        assert await stage.press(pilot, "escape") is stage.app.chat_screen


async def test_another_source_says_that_it_has_none(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage.engine, "show_cache", AttachedEngine("http://127.0.0.1:9", None).show_cache)
    async with stage.started() as pilot:
        assert await stage.press(pilot, "alt+k") is stage.app.chat_screen
        assert stage.said[-1] == NO_CACHE


async def test_before_a_model_is_loaded_it_is_empty(stage: Stage) -> None:
    async with stage.app.run_test() as pilot:
        await stage.press(pilot, "alt+k")
        assert stage.said[-1] == "the cache is empty: no model is loaded yet"


async def of_reply(stage: Stage, pilot: Pilot[None]) -> None:
    await answered(stage, pilot, None)
    await stage.press(pilot, "ctrl+l", "h")


@pytest.mark.parametrize("size", [(140, 40), (80, 24)], ids=["wide", "narrow"])
def test_of_a_reply(snap_compare: Callable[..., bool], stage: Stage, size: tuple[int, int]) -> None:
    assert snap_compare(stage.app, terminal_size=size, run_before=run(stage, of_reply))


def test_figure_4(snap_compare: Callable[..., bool], stage: Stage) -> None:
    assert snap_compare(stage.app, terminal_size=(110, 30), run_before=run(stage, of_reply, *["right"] * 3))


async def test_without_a_draft_the_curves_are_an_example(stage: Stage) -> None:
    async with stage.started((140, 40)) as pilot:
        assert isinstance(await stage.press(pilot, *"/theory", "enter"), TheoryScreen)
        caption = str(stage.app.screen.query_one("#theory-caption", Static).render())
        assert "an example, as nothing has been drafted yet" in caption
        assert await stage.press(pilot, "escape") is stage.app.chat_screen


WIDE, NARROW = (140, 40), (80, 24)
NAMES = ["draft", "verify", "accept", "reject", "correct", "bonus"]


def test_each_lesson_is_about_what_it_says() -> None:
    told = lessons(read_trace(TOUR))
    assert [lesson.name for lesson in told] == NAMES
    fates = [lesson.whole.token(lesson.token)[1].fate for lesson in told if lesson.token is not None]
    assert fates == [Fate.ACCEPTED, Fate.REJECTED, Fate.CORRECTION, Fate.BONUS]


def test_the_recorded_rounds_show_what_the_lessons_say() -> None:
    """A drafter quicker than the target, and a token whose p and q differ."""
    accept, *_, bonus = [lesson for lesson in lessons(read_trace(TOUR)) if lesson.token is not None]
    for lesson in (accept, bonus):
        record, _ = lesson.whole.token(lesson.token)
        assert record.draft_s < record.verify_s
    record, token = accept.whole.token(accept.token)
    p, q = record.p[token.place], record.q[token.place]
    assert 0 < p < q or q < p < 1
    assert token.id == record.drafted[0]


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
@pytest.mark.parametrize("turns", [0, 3, 5], ids=["draft", "reject", "bonus"])
def test_looks_of_the_tour(snap_compare: Callable[..., bool], stage: Stage, size: tuple[int, int], turns: int) -> None:
    assert snap_compare(stage.app, terminal_size=size, run_before=run(stage, tour, *["right"] * turns))
