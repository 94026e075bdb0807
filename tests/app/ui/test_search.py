"""Search over all chats, by key, palette and command."""

from functools import partial
from threading import Event
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import OptionList

from specchat.app.ui.screens.lists import SearchScreen
from tests.app.stage import QUESTION, Stage, lines_of
from tests.app.storage.helpers import add_turn
from tests.app.views import NARROW, WIDE, screen_of

pytestmark = pytest.mark.slow


def fill(stage: Stage) -> None:
    """Two chats; in the first, the prompt that is searched for is no longer the version that is shown."""
    for title, prompts in (
        ("Trips", ("Where is the Alfama?", "And where to eat?")),
        ("Code", ("Sort a list", "In Rust?")),
    ):
        chat = stage.store.create_chat(title).id
        parent = None
        for prompt in prompts:
            reply = f"That is a long story, {prompt.lower()} " * 30
            parent = add_turn(stage.store, chat, prompt, reply, parent=parent)
    stage.store.add_message(1, "user", "Where is the Baixa?")


def options(stage: Stage) -> list[str]:
    found = stage.app.screen.query_one(OptionList)
    return [str(found.get_option_at_index(n).prompt) for n in range(found.option_count)]


async def searched(stage: Stage, pilot: Pilot[None], text: str = "alf") -> None:
    fill(stage)
    await stage.ready(pilot)
    await stage.press(pilot, "ctrl+k")
    await stage.press(pilot, *text)


async def test_enter_opens_the_chat_at_the_place_though_another_version_was_shown(stage: Stage) -> None:
    async with stage.after(searched, NARROW) as pilot:
        assert len(options(stage)) == 2
        await stage.press(pilot, "down", "enter")
        await stage.comes(pilot, lambda: "Where is the Alfama?" in lines_of(stage)[0])
        conversation = screen_of(stage).conversation
        assert conversation.title == "Trips"
        assert [turn.text for turn in conversation.prompts] == ["Where is the Alfama?", "And where to eat?"]
        chosen = {m.content: m.chosen for m in stage.store.messages(1) if m.role == "user"}
        assert chosen["Where is the Alfama?"]
        assert not chosen["Where is the Baixa?"]


async def test_enter_waits_for_the_search_of_what_is_typed(stage: Stage) -> None:
    stage.chats("apple pie", "avocado toast")
    async with stage.started(NARROW, "ctrl+k", "a") as pilot:
        assert options(stage)[0].startswith("# avocado")
        free = Event()
        stage.app.actions.archive.do(free.wait)
        await pilot.press(*"pple", "enter")
        free.set()
        await stage.comes(pilot, lambda: not isinstance(stage.app.screen, SearchScreen))
        assert screen_of(stage).conversation.title == "apple pie"


@pytest.mark.parametrize("markdown", [False, True])
async def test_a_hit_far_down_in_a_reply_is_brought_into_sight(stage: Stage, markdown: bool) -> None:
    words = [f"line {number} of it" for number in range(200)]
    words[120] = "here the **needle** lies"
    chat = stage.store.create_chat("Hay").id
    add_turn(stage.store, chat, "Where is the needle?", "A needle? Look:\n\n" + "\n\n".join(words))
    async with stage.started(NARROW, *(["ctrl+t"] if markdown else []), "ctrl+k") as pilot:
        await stage.press(pilot, *"needle lies")  # enter opens what is listed
        await stage.press(pilot, "enter")
        await stage.comes(pilot, lambda: any("lies" in line for line in lines_of(stage)))
        assert not any("Look:" in line for line in lines_of(stage))


async def test_the_composer_brings_back_prompts_of_other_chats(stage: Stage) -> None:
    fill(stage)
    async with stage.started(NARROW) as pilot:
        await stage.answer(pilot)
        for text in (QUESTION, "Where is the Baixa?", "In Rust?"):
            assert await stage.typed(pilot, "up") == text


def test_looks(snap_compare: Any, stage: Stage) -> None:
    assert snap_compare(stage.app, terminal_size=WIDE, run_before=partial(searched, stage, text="where i"))
