"""Several replies to one prompt: requested together, shown next to each other, picked, stored."""

from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from specchat.app.ui.screens.candidates import CandidateFrame, CandidatesScreen
from specchat.app.ui.screens.chat import ChatScreen
from specchat.app.ui.screens.dialogs import ChoiceScreen
from tests.app.stage import QUESTION, WIDE, Stage, lines_of, what_a_kill_leaves
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

ASK = f"/candidates 3 {QUESTION}"


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """Sampled replies, three of them from the trace of sampled ones."""
    return Stage(tmp_path, name="sampled", temperature=0.8, seed=5)


def turn(stage: Stage, place: int = -1) -> Any:
    return stage.app.chat_screen.conversation.prompts[place]


def stored(stage: Stage) -> list[tuple[str, str | None, bool]]:
    return [(m.role, m.finish_reason, m.chosen) for m in stage.store.messages(stage.store.chats()[0].id)]


async def test_they_are_asked_for_together_with_seeds_of_their_own_and_stopped_by_a_key(stage: Stage) -> None:
    async with stage.started(WIDE, events=5, text=ASK.replace("3 ", "3\n")) as pilot:
        assert isinstance(stage.app.screen, CandidatesScreen)
        assert [request.sampling.seed for request in stage.engine.submitted] == [5, 6, 7]
        assert {request.messages for request in stage.engine.submitted} == {stage.engine.submitted[0].messages}
        assert stored(stage) == [("user", None, True)] + [
            ("assistant", None, chosen) for chosen in (True, False, False)
        ]
        await stage.press(pilot, "ctrl+x")
        assert len(stage.engine.cancelled) == 3
        assert isinstance(stage.app.screen, CandidatesScreen)


@pytest.mark.parametrize("how", ["enter", "click"])
async def test_one_is_picked_and_the_chat_goes_on_with_it(stage: Stage, how: str) -> None:
    async with stage.started(WIDE, events=None, text=ASK) as pilot:
        if how == "enter":
            await stage.press(pilot, "right", "enter")
        else:
            frame = list(stage.app.screen.query(CandidateFrame))[1].region
            await stage.click(pilot, offset=(frame.right - 6, frame.bottom - 1))
        assert isinstance(stage.app.screen, ChatScreen)
        assert turn(stage).reply.place == 2
        assert [chosen for _, _, chosen in stored(stage)] == [True, False, True, False]
        assert any("2 / 3" in line for line in lines_of(stage))
        await stage.send(pilot, "and then?")
        assert stage.engine.submitted[-1].messages[1].content == turn(stage, 0).replies[1].text
        stage.app.chat_screen.transcript.scroll_home(animate=False, immediate=True)
        await stage.settle(pilot)
        await stage.click_on(pilot, "2 / 3")
        assert isinstance(stage.app.screen, CandidatesScreen)


async def test_picking_ends_the_others_and_keeps_their_text(stage: Stage) -> None:
    async with stage.started(WIDE, "3", events=8, text=ASK) as pilot:
        ids = [request.request_id for request in stage.engine.submitted]
        assert stage.engine.cancelled == ids[:2]
        await stage.give(pilot)
        reasons = [reason for role, reason, _ in stored(stage) if role == "assistant"]
        assert reasons[:2] == ["cancelled"] * 2
        assert reasons[2] not in (None, "cancelled")
        texts = [m.content for m in stage.store.messages(stage.store.chats()[0].id)[1:]]
        assert texts == [reply.text for reply in turn(stage).replies]
        assert all(texts)


async def test_they_are_there_after_a_kill(stage: Stage, tmp_path: Path) -> None:
    async with stage.started(WIDE, "2", events=20, text=ASK) as pilot:
        await stage.app.workers.wait_for_complete()
        stage.app.actions.archive.do(lambda: None).result(PATIENCE_S)  # type: ignore[union-attr]
        texts = [reply.text for reply in turn(stage).replies]
        killed = what_a_kill_leaves(tmp_path)
    again = Stage(killed, name="sampled", temperature=0.8)
    async with again.started(WIDE, "ctrl+b", "home", "enter") as pilot:
        assert [reply.text for reply in turn(again).replies] == texts
        assert turn(again).reply.place == 2
        await again.send(pilot, "/candidates")
        assert isinstance(again.app.screen, CandidatesScreen)


async def test_all_would_be_the_same_without_a_temperature(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    async with stage.started(WIDE, events=0, text=ASK) as pilot:
        assert isinstance(stage.app.screen, ChoiceScreen)
        await stage.press(pilot, "escape")
        assert stage.app.chat_screen.writing.unsent.of(stage.app.chat_screen.conversation)[0] == ASK
        assert not stage.engine.submitted
        await stage.press(pilot, "enter", "2")
        assert [request.sampling.temperature for request in stage.engine.submitted] == [0.0]
        stage.engine.give()
        await stage.send(pilot, ASK)
        await stage.press(pilot, "1")
        assert [request.sampling.temperature for request in stage.engine.submitted[1:]] == [0.8] * 3
        assert isinstance(stage.app.screen, CandidatesScreen)


LOOKS = {"four": (4, 60, WIDE), "four_narrow": (4, 60, (80, 24)), "eight": (8, 60, WIDE)}


@pytest.mark.parametrize("name", LOOKS)
def test_looks(snap_compare: Any, tmp_path: Path, name: str) -> None:
    count, events, size = LOOKS[name]
    stage = Stage(tmp_path, name="sampled", temperature=0.8)

    async def before(pilot: Pilot[None]) -> None:
        await stage.ready(pilot)
        await stage.send(pilot, f"/candidates {count} {QUESTION}")
        for number, request in enumerate(stage.engine.submitted):
            if number < 4:  # the others wait for a slot
                stage.engine.give_to(request.request_id, events + 5 * number)
        await stage.settle(pilot)
        await stage.settle(pilot)  # a scrollbar takes room, which may move the lines once more

    assert snap_compare(stage.app, terminal_size=size, run_before=before)
