"""The picture of the cache: chats, shared blocks, room; and sources that have none."""

from collections.abc import Callable

import pytest
from textual.pilot import Pilot
from textual.widgets import Static

from specchat.app.sources.attached import AttachedEngine
from specchat.app.sources.source import NO_CACHE
from specchat.app.ui.screens.cache import CELLS, OTHERS, CacheScreen
from specchat.engine import CachedText, CacheUse
from tests.app.stage import Stage, run
from tests.app.views import answered

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


def text_of(stage: Stage) -> str:
    return str(stage.app.screen.query_one("#cache-text", Static).render())


@pytest.mark.parametrize("size", [(140, 40), (80, 24)], ids=["wide", "narrow"])
def test_looks(snap_compare: Callable[..., bool], stage: Stage, size: tuple[int, int]) -> None:
    assert snap_compare(stage.app, terminal_size=size, run_before=run(stage, two_chats, "alt+k"))


async def test_it_has_the_blocks_of_each_chat(stage: Stage) -> None:
    async with stage.after(two_chats) as pilot:
        await stage.press(pilot, "alt+k")
        assert isinstance(stage.app.screen, CacheScreen)
        lines = text_of(stage).splitlines()
        assert lines[0] == "812 of 4,096 blocks of 32 tokens used · 650 MB of 3.3 GB"
        picture = lines[2]
        assert len(picture) == CELLS
        assert picture.strip("·") == "a" * 40 + "b" * 27 + "B" * 12 + "c"
        (running, first, others) = (line.split() for line in lines[5:8])
        assert [running[0], *running[-3:]] == ["a", "13,088", "0", "running"]
        assert [first[0], *first[-2:]] == ["b", "12,800", "3,840"]
        assert others == ["c", *OTHERS.split(), "96", "0"]


async def test_chats_with_one_title_are_two(stage: Stage) -> None:
    async with stage.started() as pilot:
        for _ in range(2):
            await stage.answer(pilot, text="hi")
            await stage.press(pilot, "ctrl+n")
        texts = (CachedText(request.request_id, 1, 0, running=False) for request in stage.engine.submitted)
        stage.engine.cache = CacheUse(32, 800_000, 16, tuple(texts), 0.0)
        await stage.press(pilot, "alt+k")
        assert text_of(stage).splitlines()[2] == "ab" + "·" * 14


async def test_chats_have_their_present_titles_and_the_picture_follows(stage: Stage) -> None:
    async with stage.after(two_chats) as pilot:
        await stage.press(pilot, *"/tag rome", "enter", *"/cache", "enter")
        assert "#rome" in text_of(stage)
        assert stage.engine.cache is not None
        stage.engine.cache = CacheUse(32, 800_000, 4096, (), 1.0)
        stage.app.screen._ask()  # type: ignore[attr-defined]
        await stage.settle(pilot)
        assert text_of(stage).startswith("0 of 4,096 blocks")
        await stage.press(pilot, "escape")
        assert stage.app.screen is stage.app.chat_screen


async def test_another_source_says_that_it_has_none(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage.engine, "show_cache", AttachedEngine("http://127.0.0.1:9", None).show_cache)
    async with stage.started() as pilot:
        await stage.press(pilot, "alt+k")
        assert stage.app.screen is stage.app.chat_screen
        assert stage.said[-1] == NO_CACHE


async def test_before_a_model_is_loaded_it_is_empty(stage: Stage) -> None:
    async with stage.app.run_test() as pilot:
        await stage.press(pilot, "alt+k")
        assert stage.said[-1] == "the cache is empty: no model is loaded yet"
