"""Tools in the chat: servers are turned on, calls are asked about and made, and their results continue the reply."""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from textual.pilot import Pilot

from specchat.app.chat import tool_calls
from specchat.app.chat.conversation import Conversation
from specchat.app.chat.delivery import RunningReplies
from specchat.app.chat.tool_calls import DECLINED, NO_RESULT
from specchat.app.ui.screens import calls
from specchat.app.ui.screens.dialogs import ChoiceScreen
from specchat.engine import Call, Message, MessagePart, PartKind, Request
from tests.app.calling import FORECAST, PARIS, CallingStage, served
from tests.app.stage import Stage, lines_of, run, what_a_kill_leaves
from tests.app.views import NARROW, WIDE

Compare = Callable[..., bool]
SUNNY = "18 °C in Paris"
HANG = Call("call00004", "hang", "{}")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of a server."""
    with served() as url:
        yield url


def results(request: Request) -> list[str]:
    """The results that a request has."""
    return [part.text for message in request.messages for part in message.parts_of(PartKind.RESULT)]


def lines_with(stage: Stage, text: str) -> list[str]:
    """The lines of the conversation with this text."""
    return [line.strip() for line in lines_of(stage) if text in line]


async def asked(stage: CallingStage, pilot: Pilot[None]) -> None:
    """The dialog about the first call is open."""
    await stage.ready(pilot)
    await stage.send(pilot, "/mcp here")
    await stage.answer(pilot)
    await stage.comes(pilot, lambda: stage.asked)


async def requested(stage: CallingStage, pilot: Pilot[None], number: int) -> Request:
    """Wait for this request."""
    await stage.comes(pilot, lambda: len(stage.engine.submitted) >= number)
    return stage.engine.submitted[number - 1]


@pytest.mark.parametrize(("key", "result"), [("o", SUNNY), ("n", DECLINED)])
async def test_a_call_is_decided_and_its_result_answered(server: str, tmp_path: Path, key: str, result: str) -> None:
    stage = CallingStage(tmp_path, (PARIS,), (), url=server)
    async with stage.after(asked) as pilot:
        await stage.press(pilot, key)
        second = await requested(stage, pilot, 2)
        await stage.give(pilot)
        assert results(second) == [result]
        assert [message.role for message in second.messages] == ["user", "assistant", "user"]
        assert {"weather", "forecast"} <= {tool.name for tool in stage.engine.submitted[0].tools}
        assert lines_with(stage, "weather") == ['→ weather {"city": "Paris"}', f"▸ weather {result}"]


async def test_escape_stops_before_the_call_and_continue_asks_again(server: str, tmp_path: Path) -> None:
    stage = CallingStage(tmp_path, (PARIS,), (), (), url=server)
    async with stage.after(asked) as pilot:
        await stage.press(pilot, "escape")
        assert lines_with(stage, "→") == ['→ weather {"city": "Paris"} · no result']
        assert len(stage.engine.submitted) == 1
        await stage.answer(pilot, text="And now?")  # the chat continues without the call
        assert results(stage.engine.submitted[1]) == [NO_RESULT]
        await stage.send(pilot, "/continue 1")
        await stage.comes(pilot, lambda: stage.asked)
        await stage.press(pilot, "o")
        assert results(await requested(stage, pilot, 3)) == [SUNNY]


async def test_a_running_call_is_stopped_and_earlier_results_are_kept(server: str, tmp_path: Path) -> None:
    stage = CallingStage(tmp_path, (PARIS, HANG), (), url=server)
    async with stage.after(asked) as pilot:
        await stage.press(pilot, "a")
        await stage.comes(pilot, lambda: stage.asked)
        await pilot.press("o")
        stage.app.pump.run()
        assert lines_with(stage, "hang") == ["→ hang {} · running"]
        await pilot.press("escape")
        await stage.settle(pilot)
        assert stage.results == [SUNNY]
        assert lines_with(stage, "hang") == ["→ hang {} · no result"]
        assert lines_with(stage, "stopped") == ["■ stopped"]
        await stage.send(pilot, "/continue")
        await stage.comes(pilot, lambda: stage.asked)
        await stage.press(pilot, "escape")
        await stage.answer(pilot, text="And now?")
        assert results(stage.engine.submitted[1]) == [SUNNY, NO_RESULT]
        await stage.send(pilot, "/continue 1")
        await stage.comes(pilot, lambda: stage.asked)
        await stage.press(pilot, "n")
        assert results(await requested(stage, pilot, 3)) == [SUNNY, DECLINED]


async def test_a_server_that_the_app_starts_costs_only_its_bad_calls(tmp_path: Path) -> None:
    bad = (Call("c1", "odd_name", "{}"), Call("c2", "crash", "{}"))
    stage = CallingStage(tmp_path, (*bad, PARIS), ())
    async with stage.after(asked) as pilot:
        for _ in (*bad, PARIS):
            await stage.comes(pilot, lambda: stage.asked)
            await stage.press(pilot, "o")
        crashed = "error: the MCP server here ended without an answer: ␛[2Jthis is not JSON"
        assert results(await requested(stage, pilot, 2)) == ["[2Jsafe", crashed, SUNNY]
        assert not any("\x1b" in line for line in lines_of(stage))


async def test_prompts_wait_for_calls_and_another_chat_is_not_interrupted(server: str, tmp_path: Path) -> None:
    stage = CallingStage(tmp_path, (PARIS,), (), (), url=server)
    async with stage.started() as pilot:
        await stage.send(pilot, "/mcp here")
        await stage.send(pilot)
        await stage.send(pilot, "Typed ahead.")
        await stage.press(pilot, "ctrl+n")
        await stage.give(pilot)
        assert stage.asked is None
        assert "waits for your decision about a call of weather" in stage.said[-1]
        await stage.press(pilot, "ctrl+b", "enter")
        await stage.comes(pilot, lambda: stage.asked)
        await stage.press(pilot, "o")
        second = await requested(stage, pilot, 2)
        assert results(second) == [SUNNY]
        await stage.give(pilot)
        last = await requested(stage, pilot, 3)
        assert [message.content for message in last.messages if message.role == "user"][-1] == "Typed ahead."
        assert last.messages[:3] == second.messages


async def test_a_kill_during_the_question_leaves_a_chat_that_continues(server: str, tmp_path: Path) -> None:
    stage = CallingStage(tmp_path, (PARIS,), url=server)
    async with stage.after(asked):
        killed = what_a_kill_leaves(tmp_path)
    again = CallingStage(killed, (), (), url=server, reopen="on")
    async with again.started() as pilot:
        assert lines_with(again, "→") == ['→ weather {"city": "Paris"} · no result']
        await again.answer(pilot, text="And now?")  # which waits for the servers of the chat
        first = await requested(again, pilot, 1)
        assert (results(first), first.tools) == ([NO_RESULT], stage.engine.submitted[0].tools)
        await again.give(pilot)
        await again.send(pilot, "/mcp here")
        await again.send(pilot, "/continue 1")
        assert again.said[-1].startswith("the calls of this reply have no result, and no server is on")


async def test_a_stored_chat_keeps_its_servers_until_they_are_gone(server: str, tmp_path: Path) -> None:
    stage = CallingStage(tmp_path, (), (), url=server)
    async with stage.started() as pilot:
        await stage.answer(pilot)
        await stage.send(pilot, "/mcp here")
        await stage.send(pilot, "/fork")
        assert await stage.comes(pilot, lambda: stage.app.chat_screen.conversation.tools)
    stage.file.write_text("[mcp.other]\nurl = 'http://127.0.0.1:9'\n")
    again = Stage(tmp_path, file=stage.file, reopen="on")
    async with again.started() as pilot:
        assert [sentence[:29] for sentence in again.said] == ["the MCP server here is not in"]
        await again.answer(pilot, text="And now?")
        assert [request.tools for request in again.engine.submitted] == [()]
        assert [chat.servers for chat in again.store.chats()] == [(), ("here",)]  # the fork, and its original


async def test_a_chat_with_results_is_reopened_forked_edited_and_regenerated(server: str, tmp_path: Path) -> None:
    stage = CallingStage(tmp_path, (PARIS,), (), (), (PARIS,), (), url=server)
    async with stage.after(asked) as pilot:
        await stage.press(pilot, "o")
        second = await requested(stage, pilot, 2)
        await stage.give(pilot)
        await stage.send(pilot, "/fork")
        assert stage.results == [SUNNY]
        await stage.answer(pilot, text="/regenerate")
        await stage.press(pilot, "2")
        assert (await requested(stage, pilot, 3)).messages == second.messages
        await stage.give(pilot)
        await stage.send(pilot, "/edit 2")
        assert stage.said[-1] == "results of calls cannot be edited: edit the prompt before them"
        await stage.send(pilot, "/edit")  # the last prompt that was typed
        assert stage.composer.text == stage.engine.submitted[0].messages[0].content


async def test_a_model_that_calls_without_end_is_stopped(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool_calls, "MOST_REPLIES", 2)
    stage = CallingStage(tmp_path, (PARIS,), url=server)
    async with stage.after(asked) as pilot:
        await stage.press(pilot, "a")
        for number in (2, 3):
            await requested(stage, pilot, number)
            await stage.give(pilot)
        assert stage.said[-1] == "the model has called tools in 2 replies: ask for less at once"
        assert len(stage.engine.submitted) == 3
        assert lines_with(stage, "no result")


async def test_keys_that_belong_to_a_prompt_decide_nothing(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "QUIET_S", 3600)
    stage = CallingStage(tmp_path, (PARIS,), (), url=server)
    async with stage.after(asked) as pilot:
        await stage.press(pilot, "n", "o", "a")
        assert stage.asked


async def test_servers_are_listed_turned_off_and_refused(server: str, tmp_path: Path) -> None:
    stage = CallingStage(tmp_path, (), (), url=server)
    stage.engine.ready = replace(stage.engine.ready, context=0)  # a server that does not report it
    async with stage.started() as pilot:
        assert stage.app.actions.tools.names() == ["here"]
        assert (await stage.send(pilot, "/mcp there")).startswith("the MCP server there is not in")
        await stage.send(pilot, "/mcp")
        assert isinstance(stage.app.screen, ChoiceScreen)
        await stage.press(pilot, "1")
        assert await stage.comes(pilot, lambda: stage.app.chat_screen.conversation.tools)
        assert (await stage.send(pilot, "/mcp here")) == "here is off in this chat"
        await stage.send(pilot)
        assert stage.engine.submitted[0].tools == ()
    none = Stage(tmp_path, file=tmp_path / "none.toml")
    async with none.started() as pilot:
        assert "add [mcp.NAME] with command" in await none.send(pilot, "/mcp")
    other = CallingStage(tmp_path, url=server)
    other.engine.ready = none.engine.ready
    async with other.started() as pilot:
        assert (await other.send(pilot, "/mcp here")).startswith("smollm2-135m cannot call tools")


async def test_a_model_without_tools_refuses_them_and_names_the_command(server: str, tmp_path: Path) -> None:
    stage = CallingStage(tmp_path, (), url=server)
    async with stage.started() as pilot:
        await stage.send(pilot, "/mcp here")
        stage.engine.ready = replace(stage.engine.ready, tools=False)
        await stage.ready(pilot)
        await stage.send(pilot)
        stage.engine.fail("no place for tools")
        await stage.settle(pilot)
        assert stage.said[-1] == "no place for tools · /mcp here turns the tools of this chat off"


async def test_a_result_is_unfolded_by_a_click_and_a_key(server: str, tmp_path: Path) -> None:
    stage = CallingStage(tmp_path, (FORECAST,), (), url=server)
    async with stage.after(asked) as pilot:
        await stage.press(pilot, "o")
        await requested(stage, pilot, 2)
        await stage.settle(pilot)
        assert not lines_with(stage, "day 12:")
        await stage.click_on(pilot, "▸ forecast")
        assert lines_with(stage, "day 12:")
        await stage.click_on(pilot, "▾ forecast")
        await stage.click_on(pilot, "→ forecast")
        assert lines_with(stage, "hourly: false")
        assert not lines_with(stage, "day 12:")
        await stage.press(pilot, "alt+t")
        assert lines_with(stage, "day 12:")


def test_a_replay_shows_calls_and_results() -> None:
    call = MessagePart(PartKind.CALL, PARIS.arguments, PARIS.name, PARIS.id)
    result = tool_calls.result_of(call, SUNNY)
    messages = Message("user", "hi"), Message("assistant", parts=[call]), Message("user", parts=[result])
    conversation = Conversation()
    RunningReplies().follow(conversation, Request("r", messages))
    assert conversation.messages(conversation.prompts[-1]) == messages


async def answered(stage: CallingStage, pilot: Pilot[None]) -> None:
    """One call is made, another one declined, and the reply has begun."""
    await asked(stage, pilot)
    await stage.press(pilot, "o")
    await stage.comes(pilot, lambda: stage.asked)
    await stage.press(pilot, "n")
    await requested(stage, pilot, 2)
    await stage.give(pilot, 20)
    stage.engine.cancel(stage.engine.submitted[1].request_id)
    await stage.settle(pilot)


async def unfolded(stage: CallingStage, pilot: Pilot[None]) -> None:
    """The same, unfolded."""
    await answered(stage, pilot)
    await stage.press(pilot, "alt+t")


async def listed(stage: CallingStage, pilot: Pilot[None]) -> None:
    """The servers."""
    await answered(stage, pilot)
    await stage.send(pilot, "/mcp")


@pytest.mark.parametrize(
    ("step", "size"),
    [(asked, NARROW), (asked, WIDE), (answered, WIDE), (unfolded, WIDE), (listed, WIDE)],
    ids=["asked-narrow", "asked-wide", "answered-wide", "unfolded-wide", "listed-wide"],
)
def test_looks(
    snap_compare: Compare, server: str, tmp_path: Path, step: Callable[..., Awaitable[None]], size: tuple[int, int]
) -> None:
    stage = CallingStage(tmp_path, (FORECAST, PARIS), (), url=server, view="chat")
    assert snap_compare(stage.app, terminal_size=size, run_before=run(stage, step))
