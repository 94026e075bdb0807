"""The side-by-side mode: keys, turns, what is stored, what the figures count, and looks, on recorded lanes."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Static

from specchat.app.storage.store import Store
from specchat.app.ui.screens.chat import ChatScreen
from specchat.app.ui.screens.side_by_side import SideScreen
from specchat.app.ui.widgets.composer import Composer
from specchat.engine import Order, Sampling
from tests.app.side_stage import FOLLOW_UP, QUESTION, SideStage, differing
from tests.app.stage import lines_of, run
from tests.app.views import NARROW, WIDE

pytestmark = pytest.mark.slow


@pytest.fixture
def stage(tmp_path: Path) -> SideStage:
    return SideStage(tmp_path)


def summary(stage: SideStage) -> str:
    """The text of the summary as it stands."""
    widget = stage.screen.query_one("#summary")
    return "\n".join(strip.text for strip in widget.render_lines(widget.outer_size.region))


async def test_one_prompt_goes_into_both_lanes_when_the_models_are_there(stage: SideStage) -> None:
    own = Sampling(0.7, repetition_penalty=1.1, dry_multiplier=0.8)
    stage.readies = (replace(stage.readies[0], sampling=own), stage.readies[1])
    async with stage.app.run_test(size=WIDE) as pilot:
        await stage.send(pilot)
        assert not stage.left.submitted
        await stage.ready(pilot)
        (left,), (right,) = stage.left.submitted, stage.right.submitted
        assert left.messages == right.messages
        assert left.sampling == right.sampling == replace(own, seed=left.sampling.seed)
        assert "T 0.7" in str(stage.screen.query_one("#models", Static).content)
        assert (left.drafter, left.gamma) == ("none", 0)
        assert (right.drafter, right.gamma) == ("auto", None)


async def test_summary_and_one_chat_with_both_replies_in_the_store(stage: SideStage) -> None:
    async with stage.started(WIDE) as pilot:
        assert "A lane's clock runs" in summary(stage)
        await stage.answer(pilot)
        shown = summary(stage)
        assert "identical, token for token (72 tokens)" in shown
        for words in ("measured", "Theorem 3.8", "Theorem 3.11", "target passes"):
            assert words in shown
        await stage.answer(pilot, text=FOLLOW_UP)
    store = Store(stage.store.path)
    (chat,) = store.chats()
    assert chat.title == f"{QUESTION[:47].rstrip()}…"
    first, left, right, *later = store.messages(chat.id)
    assert (first.content, left.parent, right.parent) == (QUESTION, first.id, first.id)
    assert [(m.content, m.parent) for m in later if m.role == "user"] == [(FOLLOW_UP, left.id), (FOLLOW_UP, right.id)]


async def test_esc_stops_both_and_keeps_their_texts(stage: SideStage) -> None:
    async with stage.started(WIDE) as pilot:
        await stage.send(pilot)
        await stage.send(pilot, FOLLOW_UP)
        await stage.give(pilot, 20, 20)
        await stage.press(pilot, "f8", "f9")
        assert isinstance(stage.app.screen, SideScreen)  # a lane that answers cannot be continued in the chat
        await stage.press(pilot, "escape")
        assert [reply.reason for reply in (lane.reply for lane in stage.duet.lanes)] == ["cancelled", "cancelled"]  # type: ignore[union-attr]
        assert stage.duet.lanes[0].reply.text  # type: ignore[union-attr]
        assert stage.screen.query_one(Composer).text == FOLLOW_UP


@pytest.mark.parametrize(("key", "side"), [("f8", 0), ("f9", 1)])
async def test_going_on_from_a_lane(stage: SideStage, key: str, side: int) -> None:
    async with stage.started(WIDE, events=None) as pilot:
        conversation = stage.duet.conversations[side]
        assert isinstance(await stage.press(pilot, key), ChatScreen)
        assert stage.app.screen.conversation is conversation
        assert any("× faster" in line for line in lines_of(stage)) is (side == 1)
        assert stage.left.closed
        assert stage.right.closed
        await stage.send(pilot, FOLLOW_UP)
        (request,) = stage.chat_engine.submitted
        assert request.messages[1].content == conversation.prompts[0].reply.text  # type: ignore[union-attr]
        assert conversation.prompts[0].reply.place == side + 1  # type: ignore[union-attr]
        assert [m.chosen for m in stage.store.messages(1)[1:3]] == [side == 0, side == 1]


async def test_what_is_typed_moves_to_the_chat(stage: SideStage) -> None:
    async with stage.started(WIDE, events=None) as pilot:
        first = stage.duet
        assert isinstance(await stage.press(pilot, *"And then?", "escape"), ChatScreen)
        assert stage.composer.text == "And then?"
        assert isinstance(await stage.press(pilot, "ctrl+u", "ctrl+y"), SideScreen)
        assert stage.duet is not first
        await stage.press(pilot, *"/temp 0.7", "enter", "escape")
        assert stage.composer.text == "/temp 0.7"  # still a command


async def test_a_difference_is_asked_about_once_and_the_next_turn_waits_for_the_answer(tmp_path: Path) -> None:
    stage = SideStage(tmp_path, change_right=differing)
    async with stage.started(WIDE, events=None) as pilot:
        assert "they part at token" in summary(stage)
        assert len(stage.left.asked) == 1
        await stage.send(pilot, FOLLOW_UP)
        assert len(stage.left.submitted) == 1
        stage.left.answer(0.125)
        await stage.settle(pilot)
        assert len(stage.left.submitted) == 2
        # From here on the lanes are asked different things: their texts are no longer held against each other.
        await stage.give(pilot, None, None)
        assert "not compared" in summary(stage)
        assert len(stage.left.asked) == 1


Compare = Callable[..., bool]
STATES = {"start": (), "running": (40, 20), "one_finished": (60, None), "both_finished": (None, None)}
"""How many events each lane has given of its reply."""


async def both_finished(stage: SideStage, pilot: Pilot[None]) -> None:
    await stage.ready(pilot)
    await stage.send(pilot)
    await stage.give(pilot, None, None)


@pytest.mark.parametrize(
    ("step", "size"),
    [("start", WIDE), ("running", WIDE), ("one_finished", WIDE), ("both_finished", WIDE), ("both_finished", NARROW)],
    ids=["start-wide", "running-wide", "one_finished-wide", "both_finished-wide", "both_finished-narrow"],
)
def test_state(snap_compare: Compare, tmp_path: Path, step: str, size: tuple[int, int]) -> None:
    stage, given = SideStage(tmp_path), STATES[step]

    async def before(pilot: Pilot[None]) -> None:
        await stage.ready(pilot)
        if given:
            await stage.send(pilot)
            await stage.give(pilot, *given)

    assert snap_compare(stage.app, terminal_size=size, run_before=before)


def test_beside_a_server(snap_compare: Compare, tmp_path: Path) -> None:
    stage = SideStage(tmp_path, order=Order.SEQUENTIAL, server="http://127.0.0.1:8080")
    assert snap_compare(stage.app, terminal_size=WIDE, run_before=run(stage, both_finished))
