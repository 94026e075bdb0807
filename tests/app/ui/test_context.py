"""How full the context is, what happens when it is full, and messages that were left out."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from textual.pilot import Pilot

from specchat.app.chat.exchange import as_json
from specchat.app.ui.widgets.prompt_frame import PromptFrame
from specchat.engine import Admitted
from tests.app.stage import QUESTION, Stage, lines_of, run
from tests.app.views import NARROW, WIDE, screen_of

pytestmark = pytest.mark.slow


def frame(stage: Stage) -> PromptFrame:
    return stage.app.chat_screen.query_one(PromptFrame)


async def begin(stage: Stage, pilot: Pilot[None], context: int) -> None:
    """An engine with so much room; it counts a token for each word."""
    stage.engine.ready = replace(stage.engine.ready, context=context)
    await stage.ready(pilot)


async def answered(stage: Stage, pilot: Pilot[None], text: str, left_out: tuple[int, ...] = ()) -> None:
    """Ask, and let the engine leave these messages out."""
    await stage.send(pilot, text)
    for events in stage.engine.open.values():
        events[:] = [replace(e, left_out=left_out) if isinstance(e, Admitted) else e for e in events]
    await stage.give(pilot)


async def three_turns(stage: Stage, pilot: Pilot[None]) -> None:
    """The third reply was written without the first two turns."""
    await begin(stage, pilot, 150)
    await answered(stage, pilot, QUESTION)
    await answered(stage, pilot, "Shorter, please.")
    await answered(stage, pilot, "And in one word?", (0, 1, 2, 3))


def test_looks(snap_compare: Callable[..., bool], tmp_path: Path) -> None:
    stage = Stage(tmp_path, when_full="drop-oldest")
    assert snap_compare(stage.app, terminal_size=WIDE, run_before=run(stage, three_turns))


async def test_the_bar_has_all_that_is_sent(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "list.txt").write_text("tea milk sugar")
    monkeypatch.chdir(tmp_path)
    async with stage.app.run_test(size=WIDE) as pilot:
        await begin(stage, pilot, 1000)
        await stage.answer(pilot, text="two words")
        history = 2 + len(screen_of(stage).conversation.prompts[0].reply.text.split())  # type: ignore[union-attr]
        assert frame(stage).usage is None  # more than half is free, and nothing is typed
        await stage.press(pilot, *"what is in @list.txt")
        await stage.counted(pilot)
        usage = frame(stage).usage
        assert (usage.history, usage.prompt, usage.attached) == (history, 4, 6)  # with its name and fences
        assert usage.room == 1000 - usage.total
        assert f"▮▯▯▯▯ {usage.total:,} / 1,000" in str(frame(stage).border_subtitle)
        assert f"history {history} · prompt 4 · attached 6 · room for the reply" in str(frame(stage).tooltip)
        stage.composer.clear()
        await stage.settle(pilot)
        assert frame(stage).usage is None


async def test_stop_keeps_the_prompt_and_says_why(stage: Stage) -> None:
    async with stage.app.run_test(size=NARROW) as pilot:
        await begin(stage, pilot, 12)
        text = " ".join(["word"] * 12)
        stage.composer.put(text)
        await stage.counted(pilot)
        assert "▮▮▮▮▮ 12 / 12 · no room for a reply" in str(frame(stage).border_subtitle)
        await stage.press(pilot, "enter")
        sentence = "not sent: with the conversation it has 12 tokens, and the context holds 12"
        assert stage.said[-1].startswith(sentence)
        assert stage.app.chat_screen.typed == text
        assert not stage.engine.submitted
        stage.composer.put("/context drop-oldest")
        await stage.press(pilot, "enter")
        stage.composer.put(text)
        await stage.counted(pilot)
        assert "the oldest turns are left out" in str(frame(stage).border_subtitle)
        await stage.press(pilot, "enter")
        assert stage.engine.submitted[0].when_full == "drop-oldest"


def without_speed(line: str) -> str:
    """The line below a reply without the speedup, which is measured against other plain rounds than before."""
    return re.sub(r"[\d.]+× faster", "", line)


async def test_what_the_model_was_not_told_is_grey_and_stays_so_in_the_store(stage: Stage) -> None:
    async with stage.after(three_turns, (100, 60)) as pilot:
        conversation = screen_of(stage).conversation
        assert conversation.left_out == frozenset(conversation.prompts[:2])
        seen = lines_of(stage)
        mark = next(y for y, line in enumerate(seen) if "the model was not told the 2 messages above" in line)
        assert "And in one word?" in seen[mark + 1]
        grey = stage.app.chat_screen.transcript.painter.styles["untold"].color
        strips = [stage.app.chat_screen.transcript.render_line(y) for y in (mark - 2, mark + 1)]
        told = [any(segment.style and segment.style.color == grey for segment in strip) for strip in strips]
        assert told == [True, False]
        assert '"left_out"' in as_json(conversation, "")
        stage.app.actions.chats.open(stage.store.chats()[0])
        await stage.settle(pilot)
        again = screen_of(stage).conversation
        assert again is not conversation
        assert again.left_out == frozenset(again.prompts[:2])
        assert [without_speed(line) for line in lines_of(stage)] == [without_speed(line) for line in seen]
        await answered(stage, pilot, "Thanks.")
        assert not again.left_out
        assert not any("not told" in line for line in lines_of(stage))
