"""Prompts that wait for a reply or for the models, while the tree of the chat changes."""

from pathlib import Path

from textual.widgets import OptionList

from specchat.app.ui.screens.lists import MessagesScreen
from tests.app.stage import FOLLOW_UP, QUESTION, Stage
from tests.app.ui.test_tree import EDITED, path, stored
from tests.app.views import NARROW, WIDE, screen_of


async def test_a_message_that_goes_back_into_the_composer_leaves_the_list(stage: Stage) -> None:
    async with stage.started(NARROW, events=None) as pilot:
        await stage.send(pilot, FOLLOW_UP)
        await stage.press(pilot, "ctrl+e")
        stage.engine.fail("the prompt is too long")
        await stage.settle(pilot)
        assert isinstance(await stage.press(pilot, "enter"), MessagesScreen)
        assert stage.app.screen.query_one(OptionList).option_count == 1


async def test_a_prompt_that_waits_follows_one_reply(tmp_path: Path) -> None:
    """It moves from the running reply to the new one."""
    stage = Stage(tmp_path, temperature=0.7)
    async with stage.started(WIDE, events=10) as pilot:
        await stage.send(pilot, FOLLOW_UP)
        await stage.send(pilot, "/regenerate 1")
        await stage.give(pilot)
        await stage.give(pilot)
        conversation = screen_of(stage).conversation
        assert path(conversation) == [("1/1", QUESTION, 2, 2), ("1/1", FOLLOW_UP, 1, 1)]
        await stage.press(pilot, "ctrl+e", "up", "left", "escape")
        assert path(conversation) == path(stored(stage)) == [("1/1", QUESTION, 1, 2)]


async def test_later_prompts_that_wait_stay_when_a_prompt_is_edited(stage: Stage) -> None:
    async with stage.started(WIDE, events=10) as pilot:
        for prompt in (FOLLOW_UP, "third", "/edit 1", EDITED):
            await stage.send(pilot, prompt)
        for _ in range(3):
            await stage.give(pilot)
        assert [turn.text for turn in stored(stage).prompts] == [EDITED, FOLLOW_UP, "third"]


async def test_no_other_reply_to_a_prompt_that_waits(stage: Stage) -> None:
    async with stage.started(WIDE, events=10) as pilot:
        await stage.send(pilot, FOLLOW_UP)
        for command in ("/regenerate", "/penalise"):
            assert await stage.send(pilot, command) == "this prompt waits to be sent: it has no reply yet"
        assert len(stage.engine.submitted) == 1


async def test_an_edit_that_waits_is_taken_back_with_escape(stage: Stage) -> None:
    """While the models load, a prompt and then another version of it are sent."""
    async with stage.app.run_test(size=WIDE) as pilot:
        await stage.send(pilot, "one")
        await stage.press(pilot, "ctrl+e", "e")
        await stage.send(pilot, "two")
        conversation = screen_of(stage).conversation
        assert path(conversation) == [("2/2", "two", 1, 0)]
        await stage.press(pilot, "escape")
        assert path(conversation) == [("1/1", "one", 1, 0)]
        assert stage.composer.text == "two"
        await stage.press(pilot, "escape")
        assert conversation.prompts == []
        assert stage.store.chats() == []
