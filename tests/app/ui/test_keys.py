"""Every key and every mouse action, on a recorded engine."""

from pathlib import Path
from typing import Any

import pytest
from textual.events import Key, MouseScrollUp, Paste
from textual.widgets import Input

from specchat.app.chat.conversation import Conversation
from specchat.app.chat.reply_stage import Stage as ReplyStage
from specchat.app.ui.action_table import ACTIONS
from specchat.app.ui.screens.chat import ChatScreen
from specchat.app.ui.screens.dialogs import RenameScreen
from specchat.app.ui.widgets.chat_list import ChatList
from specchat.app.ui.widgets.composer import Composer
from specchat.app.ui.widgets.transcript import Transcript
from specchat.engine import FinishReason
from tests.app.stage import FOLLOW_UP, QUESTION, Stage
from tests.app.views import NARROW, WIDE, answered, screen_of


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    stage = Stage(tmp_path)
    stage.chats("Regex for dates", "Sort a list in place")
    return stage


def conversation(stage: Stage) -> Conversation:
    return screen_of(stage).conversation


def widget(stage: Stage, kind: type[Any]) -> Any:
    return stage.app.screen.query_one(kind)


def messages(stage: Stage) -> list[tuple[str, str | None]]:
    """Role and finish reason of what is stored in the newest chat."""
    return [(m.role, m.finish_reason) for m in stage.store.messages(stage.store.chats()[0].id)]


async def test_enter_sends_and_the_next_prompt_has_the_history(stage: Stage) -> None:
    async with stage.started(WIDE, events=None) as pilot:
        await stage.answer(pilot, text=FOLLOW_UP)
        first, second = stage.engine.submitted
        assert [m.content for m in first.messages] == [QUESTION]
        assert [m.role for m in second.messages] == ["user", "assistant", "user"]
        assert second.messages[1].content == conversation(stage).prompts[0].reply.text  # type: ignore[union-attr]
        assert messages(stage) == [("user", None), ("assistant", "length")] * 2


async def test_prompt_history(stage: Stage) -> None:
    async with stage.started(WIDE) as pilot:
        for prompt in ("first", "second"):
            await stage.answer(pilot, text=prompt)
        assert await stage.typed(pilot, "x", "up") == "second"
        assert await stage.typed(pilot, "up") == "first"
        assert await stage.typed(pilot, "up", "down", "down") == "x"


async def test_text_before_a_recalled_prompt_stays_in_its_chat(stage: Stage) -> None:
    async with stage.started(WIDE, events=None, text="first") as pilot:
        assert await stage.typed(pilot, "x", "up", "ctrl+n") == ""
        assert await stage.typed(pilot, "ctrl+b", "home", "enter") == "x"
        assert await stage.typed(pilot, "up", "!", "ctrl+n", "ctrl+b", "home", "enter") == "x\n\nfirst!"


@pytest.mark.parametrize("recalled", ["first", "/candidates 1 each"])
async def test_what_was_typed_before_a_recalled_prompt_stays_when_that_is_sent(stage: Stage, recalled: str) -> None:
    async with stage.started(WIDE, events=0, text=recalled) as pilot:
        stage.composer.begin("")
        await stage.press(pilot, "x", "up", "enter")
        assert stage.composer.text.removeprefix(f"{recalled}\n\n") == "x"


async def test_a_prompt_that_is_taken_back_stands_before_what_was_typed_before_a_recalled_one(stage: Stage) -> None:
    async with stage.started(WIDE, events=10, text="first") as pilot:
        await stage.send(pilot, "second")
        assert await stage.typed(pilot, "x", "up", "escape") == "second\n\nx"


async def test_stop_keeps_the_text(stage: Stage) -> None:
    async with stage.started(WIDE, "escape", events=40):
        reply = conversation(stage).prompts[0].reply
        assert (reply.stage, reply.reason) == (ReplyStage.ENDED, FinishReason.CANCELLED)
        assert messages(stage) == [("user", None), ("assistant", "cancelled")]
        stored = stage.store.messages(stage.store.chats()[0].id)[1]
        assert stored.content == reply.text != ""


async def test_prompts_typed_ahead_are_sent_in_turn_or_taken_back(stage: Stage) -> None:
    async with stage.started(WIDE, events=10) as pilot:
        await stage.send(pilot, "second")
        assert len(stage.engine.submitted) == 1
        await stage.give(pilot)
        assert stage.engine.submitted[1].messages[-1].content == "second"
        await stage.send(pilot, "third")
        assert await stage.typed(pilot, "escape") == "third"
        assert len(stage.engine.submitted) == 2
        assert not conversation(stage).waiting


async def test_open_by_key_and_by_mouse(stage: Stage) -> None:
    async with stage.started(WIDE, "ctrl+b", "home", "down", "enter") as pilot:
        assert conversation(stage).title == "Regex for dates"
        await stage.click(pilot, ChatList, offset=(4, 1))
        assert conversation(stage).title == "Sort a list in place"
        assert isinstance(stage.app.focused, Composer)


async def test_rename_delete_and_undo(stage: Stage) -> None:
    async with stage.app.run_test(size=WIDE) as pilot:
        assert isinstance(await stage.press(pilot, "ctrl+b", "home", "r"), RenameScreen)
        widget(stage, Input).value = "Sorting"
        await stage.press(pilot, "enter")
        assert stage.store.chats()[0].title == "Sorting"
        await stage.press(pilot, "r", "x", "escape")
        assert stage.store.chats()[0].title == "Sorting"
        await stage.press(pilot, "home", "d")
        assert [chat.title for chat in stage.store.chats()] == ["Regex for dates"]
        assert widget(stage, ChatList).highlighted == 0
        await stage.press(pilot, "u", "p")
        assert [chat.title for chat in widget(stage, ChatList).chats] == ["Sorting", "Regex for dates"]
        assert [chat.pinned for chat in stage.store.chats()] == [True, False]


async def test_deleting_the_open_chat_leaves_it_and_can_be_undone_in_the_list(stage: Stage) -> None:
    async with stage.started(WIDE, "ctrl+b", "d", events=10) as pilot:
        assert stage.engine.cancelled
        assert not conversation(stage).prompts
        assert widget(stage, ChatList).has_focus
        assert len(stage.store.chats()) == 2
        await stage.press(pilot, "u")
        assert len(stage.store.chats()) == 3
        assert isinstance(await stage.press(pilot, "r"), RenameScreen)
        assert stage.composer.text == ""


async def test_keys_in_one_burst_keep_their_order_and_an_empty_prompt_is_not_sent(stage: Stage) -> None:
    async with stage.started(WIDE, "enter", "space", "enter", "backspace") as pilot:
        assert not conversation(stage).prompts
        for key, character in (
            *(("a", "a"), ("ctrl+j", "\n"), ("shift+enter", None)),
            *(("b", "b"), ("question_mark", "?"), ("enter", "\r")),
        ):
            stage.app.post_message(Key(key, character))
        await stage.settle(pilot)
        assert [request.messages[-1].content for request in stage.engine.submitted] == ["a\n\nb?"]


async def test_text_typed_or_pasted_on_the_panel_goes_to_the_prompt(stage: Stage) -> None:
    async with stage.after(answered, NARROW) as pilot:
        await stage.press(pilot, "ctrl+g")
        assert not stage.composer.has_focus
        before = stage.app.actions.settings
        for letter in "age of 3":
            stage.app.post_message(Key("space" if letter == " " else letter, letter))
        assert await stage.typed(pilot) == "age of 3"
        assert isinstance(stage.app.screen, ChatScreen)
        assert stage.composer.has_focus
        assert stage.app.actions.settings == before
        await stage.press(pilot, "ctrl+g")
        stage.app.post_message(Paste(" from elsewhere"))
        assert await stage.typed(pilot) == "age of 3 from elsewhere"
        await stage.press(pilot, "ctrl+u", "ctrl+g", "ctrl+o", "escape")  # a dialog over the panel
        assert not isinstance(stage.app.focused, ChatList)
        assert await stage.typed(pilot, "ctrl+g", "h", "i") == "hi"


async def test_scrolling_away_from_the_end_and_back(stage: Stage) -> None:
    async with stage.started((80, 24), events=60) as pilot:
        transcript = widget(stage, Transcript)
        assert transcript.is_vertical_scroll_end
        await stage.press(pilot, "pageup")
        at = transcript.scroll_offset.y
        await stage.give(pilot, 20)
        assert transcript.scroll_offset.y == at
        await stage.press(pilot, "pagedown", "pagedown", "pagedown")
        await stage.give(pilot)
        assert transcript.is_vertical_scroll_end
        end = transcript.scroll_offset.y
        transcript.post_message(MouseScrollUp(transcript, 5, 5, 0, -1, 0, False, False, False))
        await stage.settle(pilot)
        assert transcript.scroll_offset.y < end


async def test_pictures_are_never_overwritten(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "specchat-1.svg").write_text("mine")
    async with stage.app.run_test(size=WIDE) as pilot:
        await stage.press(pilot, "alt+p")
        assert (tmp_path / "specchat-1.svg").read_text() == "mine"
        assert (tmp_path / "specchat-2.svg").read_text().startswith("<svg")


async def test_quit_stores_what_was_said(stage: Stage) -> None:
    async with stage.started(WIDE, events=20) as pilot:
        await pilot.press("ctrl+q")
    assert stage.engine.closed
    from specchat.app.storage.store import Store

    with Store(stage.database) as store:
        prompt, reply = store.messages(store.chats()[0].id)
    assert prompt.content == QUESTION
    assert reply.content
    assert reply.finish_reason == "cancelled"


async def test_the_palette_lists_every_action_that_can_be_taken(stage: Stage) -> None:
    async with stage.started(WIDE, events=10) as pilot:
        commands = {command.title: command for command in stage.app.get_system_commands(stage.app.screen)}
        assert {"New chat", "Stop", "Theme", "Quit", "Preset", "Jump", "temp T|auto", "unload"} <= commands.keys()
        listed = [command.help.partition(" · ")[0].lower() for command in commands.values()]
        for action in ACTIONS.values():
            if action.about and stage.app.actions.available(action.name):
                assert action.about.lower() in listed
        stage.composer.put("0.5")
        commands["temp T|auto"].callback()
        assert await stage.typed(pilot) == "/temp 0.5"
        await pilot.press("ctrl+p")
        await pilot.pause()
        assert stage.app.screen is not stage.app.chat_screen
        await pilot.press("escape")


async def test_a_second_key_for_a_dialog_that_closes_does_nothing(stage: Stage) -> None:
    async with stage.started(WIDE, "f8", events=None) as pilot:
        for _ in range(2):
            stage.app.post_message(Key("1", "1"))
        await stage.settle(pilot)
        assert isinstance(stage.app.screen, ChatScreen)
