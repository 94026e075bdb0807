"""Concurrent replies in several chats: marks in the list, unsent text, kills."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from specchat.app.chat.reply_stage import Stage as ReplyStage
from specchat.app.chat.request_manager import Session
from specchat.app.chat.titles import title_of, written_title
from specchat.app.storage.store import Store
from specchat.app.ui.actions import chats
from specchat.app.ui.widgets.chat_list import ChatList
from specchat.engine import Finished, FinishReason, Request, Sampling
from tests.app.quiet import all_done
from tests.app.stage import FOLLOW_UP, QUESTION, WIDE, Stage, what_a_kill_leaves

pytestmark = pytest.mark.slow


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    stage = Stage(tmp_path)
    stage.chats("Regex for dates")
    return stage


def listed(stage: Stage) -> list[str]:
    chats = stage.app.chat_screen.query_one(ChatList)
    return [str(chats.get_option_at_index(i).prompt) for i in range(len(chats.chats))]


def typed_first(stage: Stage, prepare: Callable[[], Session]) -> Session:
    """A start during which the user types."""
    stage.app.call_from_thread(stage.composer.insert, "x")
    return prepare()


async def two_at_once(stage: Stage, pilot: Pilot[None]) -> None:
    """One chat that is left while it answers, and a second one that answers too."""
    await stage.ready(pilot)
    await stage.answer(pilot, 10, text="the first chat")
    stage.clock += 1
    await stage.press(pilot, "ctrl+n")
    await stage.answer(pilot, 10, text="the second chat")


async def test_both_go_on(stage: Stage) -> None:
    async with stage.after(two_at_once, WIDE) as pilot:
        conversation = stage.app.chat_screen.conversation
        await stage.press(pilot, "ctrl+n", "ctrl+b", "home", "enter")
        assert stage.app.chat_screen.conversation is conversation
        assert not stage.engine.cancelled
        assert [len(request.messages) for request in stage.engine.submitted] == [1, 1]
        assert ["●" in line for line in listed(stage)] == [True, True, False]
        await stage.give(pilot)
        texts = [[m.content for m in stage.store.messages(chat.id)] for chat in stage.store.chats()[:2]]
        assert [prompt for prompt, _ in texts] == ["the second chat", "the first chat"]
        assert all(reply for _, reply in texts)


async def test_the_list_says_how_each_stands(stage: Stage) -> None:
    async with stage.app.run_test(size=WIDE) as pilot:
        await stage.send(pilot, "before the models are loaded")
        assert listed(stage)[0].startswith("◌ ")
        await stage.ready(pilot)
        await stage.give(pilot, 5)
        assert listed(stage)[0].startswith("● ")
        await stage.press(pilot, "ctrl+n")
        await stage.give(pilot)
        assert listed(stage)[0].startswith("◆ ")
        await stage.press(pilot, "ctrl+b", "home", "enter")
        assert listed(stage)[0].startswith("  before the model")
        await stage.answer(pilot, text="on screen")
        assert not any(line.startswith("◆") for line in listed(stage))


async def test_a_start_opens_the_last_chat_where_that_is_wanted(stage: Stage, tmp_path: Path) -> None:
    stage.store.change_chat(1, pinned=True)
    async with stage.started(WIDE):
        assert stage.app.chat_screen.conversation.chat is None
    again = Stage(tmp_path, reopen="on")
    async with again.started(WIDE):
        assert again.app.chat_screen.conversation.title == "Regex for dates"
    typing = Stage(tmp_path, reopen="on")
    typing.prepare = partial(typed_first, typing, typing.prepare)  # type: ignore[method-assign]
    async with typing.started(WIDE):
        assert typing.composer.text == "x"
        assert typing.app.chat_screen.conversation.chat is None


@pytest.mark.parametrize(
    ("prompt", "title"),
    [
        ("What should I see in Lisbon? Answer with a list.", "What should I see in Lisbon?"),
        ("hi, could you please\nwrite an email to Mr. Smith? Be polite.", "Write an email to Mr. Smith?"),
        ("Fix this:\ndef f(): pass", "Fix this"),
        ("hello world in C", "hello world in C"),
        ("Please", "Please"),
        (" one  two\nthree ", "one two three"),
        ("a " * 40, "a " * 23 + "a…"),
    ],
)
def test_a_title_is_the_first_sentence_without_its_greeting(prompt: str, title: str) -> None:
    assert title_of(prompt) == title


SAID = "Lisbon in two days: see the Alfama first."


@pytest.mark.parametrize(
    ("written", "complete", "title"),
    [
        ("Two Days in Lisbon", True, "Two Days in Lisbon"),
        (" **The \x1b Alfama**. ", True, "The Alfama"),
        ("Two Days in Lisbon: Discover Its Culture, History, and Culture", True, "Two Days in Lisbon"),
        *((text, True, "") for text in ("The Greatest Gift", "What is this conversation about?", "<think> Lisbon", "")),
        *((text, True, "") for text in ("What should I see in Lisbon", "I am here to help you see Lisbon in two days")),
        ("Request for Lisbon: Request for Lis", False, "Request for Lisbon"),
        ("Request for Lisbon and", False, ""),
    ],
)
def test_a_written_title_names_something_and_is_short(written: str, complete: bool, title: str) -> None:
    assert written_title(written, QUESTION, SAID, complete=complete) == title


@pytest.fixture
def titled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """The app with an engine that has idle moments."""
    monkeypatch.setattr(chats, "IDLE_S", 0.001)
    return Stage(tmp_path)


async def title_request(stage: Stage, pilot: Pilot[None], number: int) -> Request:
    """The request for a title of this number."""
    await stage.comes(pilot, lambda: len(stage.engine.examined) >= number)
    request, continuation = stage.engine.examined[number - 1]
    assert not continuation
    return request


async def write_title(stage: Stage, pilot: Pilot[None], number: int, title: str) -> None:
    request = await title_request(stage, pilot, number)
    stage.engine.tell(Finished(request.request_id, FinishReason.STOP, title, "", 0.0))
    await stage.settle(pilot)


async def test_an_idle_model_writes_a_title_and_makes_way_for_a_prompt(titled: Stage) -> None:
    async with titled.started(WIDE, events=None) as pilot:
        request = await title_request(titled, pilot, 1)
        assert [message.role for message in request.messages] == ["user", "assistant", "user"]
        assert (request.drafter, request.sampling, request.max_tokens < 30) == ("none", Sampling(), True)
        await titled.send(pilot, FOLLOW_UP)
        assert titled.engine.cancelled == [request.request_id]
        titled.engine.tell(Finished(request.request_id, FinishReason.CANCELLED, "Lisbon", "", 0.0))
        await titled.give(pilot)
        assert titled.store.chats()[0].title == "What should I see in Lisbon in two days?"
        assert (await title_request(titled, pilot, 2)).messages == request.messages
        await write_title(titled, pilot, 2, "Two days in Lisbon")
        assert titled.store.chats()[0].title == "Two days in Lisbon"
        assert [len(reply.rounds) > 0 for reply in titled.app.chat_screen.conversation.prompts[0].replies] == [True]


async def test_titles_of_the_user_stay_and_an_empty_one_takes_the_first_words(titled: Stage) -> None:
    async with titled.started(WIDE, events=None) as pilot:
        await title_request(titled, pilot, 1)
        await titled.press(pilot, "ctrl+b", "r", *"My own", "enter")
        await write_title(titled, pilot, 1, "Two days in Lisbon")
        assert titled.store.chats()[0].title == "My own"
        await titled.press(pilot, "r", "delete", "enter")
        assert titled.store.chats()[0].title == "What should I see in Lisbon in two days?"
        await titled.send(pilot, "/regenerate")
        await titled.give(pilot)
        await pilot.pause(0.05)
        assert len(titled.engine.examined) == 1


async def test_deleting_a_chat_that_answers_keeps_what_it_said(stage: Stage) -> None:
    async with stage.started(WIDE, events=20) as pilot:
        await stage.send(pilot, FOLLOW_UP)
        await stage.press(pilot, "ctrl+b", "home", "d", "u")
        assert stage.said[-1].startswith("restored “")
        await stage.press(pilot, "home", "enter")
        first, second = stage.app.chat_screen.conversation.prompts
        assert first.reply.text
        assert second.text == FOLLOW_UP
        assert second.reply.stage is ReplyStage.INTERRUPTED


async def test_a_kill_while_the_model_loads_loses_no_prompt(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    async with stage.app.run_test(size=WIDE) as pilot:
        await stage.send(pilot, "sent while the model loads")
        await stage.press(pilot, *"typed")
        await stage.comes(pilot, lambda: "typed" in stage.store.unsent.texts().values())
        killed = what_a_kill_leaves(tmp_path)
    with Store(killed / "specchat.db") as store:
        (chat,) = store.chats()
        assert [(m.role, m.content) for m in store.messages(chat.id)] == [("user", "sent while the model loads")]
        assert store.unsent.texts() == {chat.id: "typed"}


async def test_unsent_text_stays_with_its_chat(stage: Stage, tmp_path: Path) -> None:
    async with stage.started(WIDE, *"new", "ctrl+b", "home", "enter") as pilot:
        composer = stage.composer
        assert composer.text == ""
        assert await stage.typed(pilot, *"old", "ctrl+n") == "new"
        assert await stage.typed(pilot, "ctrl+b", "home", "enter") == "old"
        stage.app.actions.chats.write()
    again = Stage(tmp_path)
    async with again.started(WIDE) as pilot:
        assert again.composer.text == "new"
        assert await again.typed(pilot, "ctrl+b", "home", "enter") == "old"


async def test_a_prompt_taken_back_keeps_the_draft_of_a_new_chat(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specchat.app.ui.app.WRITE_S", 1e6)
    async with stage.app.run_test(size=WIDE) as pilot:
        await stage.send(pilot, "too early")
        await stage.press(pilot, "ctrl+n", *"draft", "ctrl+b", "home", "enter")
        stage.app.actions.chats.write()
        assert await stage.typed(pilot, "escape") == "too early"
        assert stage.store.unsent.texts() == {0: "draft\n\ntoo early"}
        assert await stage.typed(pilot, "ctrl+n") == "draft\n\ntoo early"


async def test_what_is_typed_during_the_start_joins_the_text_of_the_last_run(stage: Stage, tmp_path: Path) -> None:
    async with stage.started(WIDE, *"yesterday"):
        assert stage.composer.text == "yesterday"
    again = Stage(tmp_path)
    again.prepare = partial(typed_first, again, again.prepare)  # type: ignore[method-assign]
    async with again.started(WIDE) as pilot:
        assert again.composer.text == "x"
        again.app.actions.chats.write()
        await all_done(pilot.app)
        assert again.store.unsent.texts() == {0: "yesterday\n\nx"}
        await again.send(pilot, "x")
        assert await again.typed(pilot, "ctrl+n") == "yesterday"


def test_looks(snap_compare: Any, stage: Stage) -> None:
    """One chat with news, one that answers, one that waits for the models no more, the open one empty."""

    async def before(pilot: Pilot[None]) -> None:
        await two_at_once(stage, pilot)
        stage.engine.give_to(stage.engine.submitted[0].request_id)
        stage.clock += 1
        await stage.press(pilot, "ctrl+n")
        await stage.send(pilot, "a third one, for which there is no slot yet")
        await stage.press(pilot, "ctrl+b")

    assert snap_compare(stage.app, terminal_size=WIDE, run_before=before)
