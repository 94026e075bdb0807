"""A chat as a tree: edit, regenerate, continue, fork, other versions, by key, command and mouse."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from specchat.app.chat.branches import fork_at
from specchat.app.chat.conversation import Conversation, Prompt
from specchat.app.chat.reply import CHOSEN, Reply
from specchat.app.chat.stored_conversation import stored_conversation
from specchat.app.storage.store import Store
from specchat.app.ui.rendering.token_cursor import Spot
from specchat.app.ui.screens.dialogs import ChoiceScreen
from specchat.app.ui.screens.lists import MessagesScreen
from specchat.app.ui.widgets.prompt_frame import PromptFrame
from specchat.engine import Admitted, Fate, Finished, FinishReason, Given, Message
from tests.app.stage import FOLLOW_UP, QUESTION, Stage, lines_of
from tests.app.views import NARROW, WIDE, answered, reply_of, screen_of

EDITED = "What should I see in Porto?"


def path(conversation: Conversation) -> list[tuple[str, str, int, int]]:
    """For every prompt: its version, its text, the place of its reply, and the number of replies."""
    return [
        (
            f"{prompt.place}/{len(prompt.siblings)}",
            prompt.text,
            prompt.reply.place if prompt.reply else 1,
            len(prompt.replies),
        )
        for prompt in conversation.prompts
    ]


def stored(stage: Stage) -> Conversation:
    """The newest chat as another start would read it."""
    chat = stage.store.chats()[0]
    return stored_conversation(chat, stage.store.messages(chat.id))


async def two_turns(stage: Stage, pilot: Pilot[None]) -> None:
    await answered(stage, pilot, None)
    await stage.answer(pilot, text=FOLLOW_UP)


async def edited(stage: Stage, pilot: Pilot[None]) -> None:
    """Two turns, and then another version of the first prompt with a reply."""
    await two_turns(stage, pilot)
    await stage.press(pilot, "ctrl+e", "up", "e")
    await stage.answer(pilot, text=EDITED)


async def test_an_earlier_prompt_is_edited_and_nothing_is_lost(stage: Stage) -> None:
    async with stage.after(two_turns, WIDE) as pilot:
        screen = screen_of(stage)
        before = [reply_of(screen, 0).text, reply_of(screen, 1).text]
        assert await stage.typed(pilot, "x", "ctrl+e", "up", "e") == QUESTION
        assert screen.query_one(PromptFrame).border_title == "another version of message 1"
        await stage.answer(pilot, text=EDITED)
        assert stage.engine.submitted[-1].messages == (Message("user", EDITED),)
        assert path(screen.conversation) == [("2/2", EDITED, 1, 1)]
        assert stage.composer.text == "x"
        screen.transcript.scroll_home(animate=False)
        assert "prompt ‹ 2 / 2 ›" in "\n".join(lines_of(stage))
        assert path(stored(stage)) == path(screen.conversation)
        await stage.press(pilot, "ctrl+e", "shift+left", "escape")
        assert path(screen.conversation) == [("1/2", QUESTION, 1, 1), ("1/1", FOLLOW_UP, 1, 1)]
        assert [reply_of(screen, turn).text for turn in (0, 1)] == before
        again = stored(stage)
        assert path(again) == path(screen.conversation)
        assert sum(isinstance(each, Prompt) for each in again.root.descendants()) == 3


async def test_an_edit_loses_nothing_that_was_being_written(stage: Stage) -> None:
    async with stage.after(two_turns, NARROW) as pilot:
        stage.composer.load_text("half a thought")
        assert await stage.typed(pilot, "ctrl+e", "e") == FOLLOW_UP
        assert await stage.typed(pilot, "escape") == "half a thought"
        assert await stage.typed(pilot, "ctrl+e", "e", "x", "ctrl+e", "up", "e") == QUESTION  # another is edited
        assert await stage.typed(pilot, "escape") == f"half a thought\n\n{FOLLOW_UP}x"
        await stage.press(pilot, "ctrl+e", "e")
        stage.app.actions.chats.write()
        await stage.comes(pilot, lambda: stage.store.unsent.texts() == {1: f"half a thought\n\n{FOLLOW_UP}x"})
        stage.composer.load_text("another version")
    with Store(stage.database) as store:  # the program ended in the middle of it
        assert store.unsent.texts() == {1: f"half a thought\n\n{FOLLOW_UP}x\n\nanother version"}


async def test_a_click_shows_another_version_and_an_edit_of_a_prompt_outside_it_stays_in_the_composer(
    stage: Stage,
) -> None:
    async with stage.after(edited, WIDE) as pilot:
        screen_of(stage).transcript.scroll_home(animate=False)
        await stage.settle(pilot)
        await stage.click_on(pilot, "‹ 2 / 2 ›")
        assert path(screen_of(stage).conversation)[0] == ("1/2", QUESTION, 1, 1)
        await stage.press(pilot, "ctrl+e", "e", "x", "ctrl+e", "up", "shift+right", "escape", "enter")
        assert path(screen_of(stage).conversation) == [("2/2", EDITED, 1, 1)]
        assert stage.said[-1].startswith("not sent: the edited message is not in this branch")
        assert stage.composer.text == f"{FOLLOW_UP}x"


async def test_a_prompt_that_fails_during_an_edit_is_there_after_it(stage: Stage) -> None:
    async with stage.started(WIDE, events=None) as pilot:
        await stage.send(pilot, FOLLOW_UP)
        stage.composer.load_text("half a thought")
        await stage.press(pilot, "ctrl+e", "home", "e")
        stage.engine.fail("no memory")
        await stage.settle(pilot)
        assert stage.composer.text == QUESTION
        assert await stage.typed(pilot, "escape") == f"{FOLLOW_UP}\n\nhalf a thought"


async def test_another_reply_stands_beside_the_first(tmp_path: Path) -> None:
    stage = Stage(tmp_path, temperature=0.7, seed=3)
    async with stage.after(two_turns, WIDE) as pilot:
        await stage.send(pilot, "/regenerate 1")
        await stage.give(pilot)
        conversation = screen_of(stage).conversation
        assert [request.sampling.seed for request in stage.engine.submitted] == [3, 3, 4]
        assert path(conversation) == [("1/1", QUESTION, 2, 2)]
        assert path(stored(stage)) == path(conversation)
        await stage.press(pilot, "ctrl+e", "left", "escape")
        assert path(conversation) == [("1/1", QUESTION, 1, 2), ("1/1", FOLLOW_UP, 1, 1)]
        assert path(stored(stage)) == path(conversation)


async def test_a_greedy_reply_is_asked_for_again_with_other_settings(stage: Stage) -> None:
    async with stage.after(two_turns, WIDE) as pilot:
        assert isinstance(await stage.press(pilot, "ctrl+e", "r"), ChoiceScreen)
        await stage.press(pilot, "1")
        assert stage.engine.submitted[-1].sampling.temperature == 0.8
        assert stage.app.requests.settings.temperature is None
        await stage.press(pilot, "escape")
        await stage.send(pilot, "/regenerate")
        await stage.press(pilot, "2")
        assert stage.engine.submitted[-1].sampling.temperature == 0


async def test_a_stopped_reply_is_continued_from_its_own_tokens(stage: Stage) -> None:
    stage.engine.slow_to_stop = True
    async with stage.started(WIDE, "escape", events=40) as pilot:
        first = reply_of(screen_of(stage))
        stage.composer.load_text("/continue")
        await pilot.press("enter")
        assert len(stage.engine.submitted) == 1
        stage.engine.slow_to_stop = False
        stage.engine.cancel(first.request_id)
        await stage.settle(pilot)
        assert first.reason is FinishReason.CANCELLED
        request = stage.engine.submitted[-1]
        assert (request.reply_ids, request.reply_text) == (first.emitted, "")
        reply = reply_of(screen_of(stage))
        assert reply.text == first.text
        await stage.give(pilot, 10)
        assert reply.text.startswith(first.text)
        assert len(reply.own_rounds) == reply.metrics.rounds < len(reply.rounds)
        kept = stored(stage).prompts[0]
        assert [other.text for other in kept.replies] == [first.text, reply.text]
        assert kept.reply.metrics.rounds == reply.metrics.rounds


async def test_a_reply_that_repeats_itself_is_continued_or_tried_again(stage: Stage) -> None:
    async def repeats(pilot: Pilot[None]) -> str:
        """The newest reply ends; the line below it."""
        name = stage.engine.submitted[-1].request_id
        stage.engine.tell(Finished(name, FinishReason.REPEATS, "", "", 0.0))
        await stage.settle(pilot)
        return next(line for line in lines_of(stage) if "repeats itself" in line)

    async with stage.started(WIDE, events=40) as pilot:
        assert stage.engine.submitted[-1].stop_repeats
        assert (await repeats(pilot)).endswith("copy  continue  try again with a penalty")
        first = reply_of(screen_of(stage))
        await stage.click_on(pilot, "continue  try")
        more = stage.engine.submitted[-1]
        assert (more.reply_ids, more.stop_repeats, more.sampling.dry_multiplier) == (first.emitted, False, 0)
        await repeats(pilot)
        stage.app.action_run("penalise")
        await stage.settle(pilot)
        again = stage.engine.submitted[-1]
        assert (again.reply_ids, again.stop_repeats, again.sampling.dry_multiplier) == ((), True, 0.8)
        assert first.row in again.not_drafted_from


async def test_a_finished_reply_goes_on_with_a_paragraph_of_its_own(tmp_path: Path) -> None:
    stage = Stage(tmp_path, name="sampled", temperature=0.7)
    async with stage.after(two_turns, WIDE) as pilot:
        last = reply_of(screen_of(stage))
        await stage.press(pilot, "ctrl+e", "c")
        request = stage.engine.submitted[-1]
        assert last.reason is FinishReason.EOS
        assert (request.reply_ids, request.reply_text) == (last.emitted[:-1], "\n\n")


async def test_the_chat_is_forked_at_a_message(stage: Stage) -> None:
    async with stage.after(two_turns, WIDE) as pilot:
        before = stage.store.messages(1)
        await stage.send(pilot, "/fork 1")
        chats = stage.store.chats()
        assert [chat.title for chat in chats] == [f"{chats[1].title} (fork)", chats[1].title]
        assert path(screen_of(stage).conversation) == [("1/1", QUESTION, 1, 1)]
        assert stage.store.messages(1) == before
        assert [m.events for m in stage.store.messages(chats[0].id)] == [m.events for m in before[:2]]
        await stage.answer(pilot, text=FOLLOW_UP)
        assert len(stored(stage).prompts) == 2
        assert stage.store.messages(1) == before


async def at_rejection(stage: Stage, pilot: Pilot[None]) -> tuple[Reply, int]:
    """Select the first rejected token of a reply."""
    await answered(stage, pilot, None)
    reply = reply_of(screen_of(stage))
    fates = [(n, reply.token(n)[1].fate) for n in range(reply.tokens)]
    number = next(n for n, fate in fates if fate is Fate.REJECTED)
    await stage.press(pilot, "f6")
    screen_of(stage).inspection.select(Spot(reply, number))
    await stage.settle(pilot)
    return reply, number


async def test_a_reply_takes_another_way_at_a_rejected_token(stage: Stage) -> None:
    async with stage.app.run_test(size=WIDE) as pilot:
        reply, number = await at_rejection(stage, pilot)
        rejected = reply.token(number)[1]
        await pilot.press("enter")
        await pilot.pause()
        name = stage.engine.examined[-1][0].request_id
        stage.engine.tell(replace(reply.rounds[0], request_id=name), Finished(name, FinishReason.LENGTH, "", "", 0.0))
        await stage.settle(pilot)
        assert isinstance(stage.app.screen, ChoiceScreen)
        await stage.press(pilot, "1")
        request = stage.engine.submitted[-1]
        fork = fork_at(reply, number)
        before = tuple(token for record in fork.rounds for token in record.emitted)
        assert request.reply_ids == (*before, rejected.id)
        other = reply_of(screen_of(stage))
        assert other is not reply
        given = (*(Given(token, "") for token in before), Given(rejected.id, rejected.text))
        open_events = stage.engine.open[request.request_id]
        first = next(n for n, event in enumerate(open_events) if isinstance(event, Admitted))
        open_events[first] = Admitted(request.request_id, 90, 80, 0.0, 1.0, given)
        await stage.give(pilot, 8)
        assert other.text.startswith("".join(record.text for record in fork.rounds) + rejected.text)
        assert other.rounds[len(fork.rounds)].drafter == CHOSEN
        kept = stored(stage).prompts[0]
        assert [r.text for r in kept.replies] == [reply.text, other.text]
        assert [len(r.rounds) - len(r.own_rounds) for r in kept.replies] == [0, len(fork.rounds) + 1]
        assert kept.reply is kept.replies[1]


async def test_a_number_of_no_message_is_refused(stage: Stage) -> None:
    async with stage.started(NARROW, "ctrl+e") as pilot:
        assert stage.said == ["this chat has no messages yet"]
        assert not isinstance(stage.app.screen, MessagesScreen)
        await stage.answer(pilot)
        for line in ("/edit 9", "/fork x", "/continue 0"):
            assert "takes the number of a message, 1 to 1" in await stage.send(pilot, line)
            assert stage.composer.text == line


async def message_list(stage: Stage, pilot: Pilot[None]) -> None:
    await edited(stage, pilot)
    await stage.send(pilot, "/regenerate")
    await stage.press(pilot, "1")
    await stage.press(pilot, "ctrl+e")


async def editing(stage: Stage, pilot: Pilot[None]) -> None:
    await two_turns(stage, pilot)
    await stage.press(pilot, "ctrl+e", "up", "e")


@pytest.mark.parametrize("step", [message_list, editing])
def test_looks(snap_compare: Any, stage: Stage, step: Any) -> None:
    assert snap_compare(stage.app, terminal_size=WIDE, run_before=partial(step, stage))
