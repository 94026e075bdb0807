"""Failures and unusual input get one sentence or a sensible display; the app continues and nothing stored is lost."""

from pathlib import Path

import pytest

from specchat.app.chat.reply import Reply
from specchat.app.chat.request_manager import Session
from specchat.app.settings.settings import Settings
from specchat.app.ui.app import SpecChat
from specchat.engine import FinishReason, Round, message_parts, to_json
from tests.app.quiet import prepared
from tests.app.recorded import RecordedEngine, trace
from tests.app.stage import WIDE, Stage, lines_of
from tests.failing import fails

pytestmark = pytest.mark.slow


async def test_a_refused_request_is_said_in_place(stage: Stage) -> None:
    async with stage.started(WIDE) as pilot:
        stage.engine.refuse = "the prompt has 9000 tokens and the context 4096: begin a new chat"
        await stage.send(pilot)
        assert any("✗ the prompt has 9000 tokens" in line for line in lines_of(stage))
        stage.engine.refuse = None
        await stage.answer(pilot, text="shorter")
        assert [m.content for m in stage.engine.submitted[0].messages] == ["shorter"]


async def test_prompts_that_wait_when_the_engine_dies_get_its_last_sentence(stage: Stage) -> None:
    async with stage.app.run_test(size=WIDE) as pilot:
        await stage.send(pilot, "one")
        stage.engine.die("no room on the device")
        await stage.settle(pilot)
        await stage.send(pilot, "two")
        assert sum("✗ no room on the device" in line for line in lines_of(stage)) == 2
        assert stage.said == ["no room on the device"]


async def test_no_session() -> None:
    app = SpecChat(fails(RuntimeError("bug")))
    async with app.run_test(size=WIDE) as pilot:
        await prepared(app)
        await pilot.press("h", "i", "enter")
        await pilot.pause()
        reply = app.screen.conversation.prompts[0].reply  # type: ignore[attr-defined]
        assert reply.reason is FinishReason.ERROR
        assert "bug" in reply.message


async def test_a_prompt_that_the_engine_refuses_returns_to_the_composer(stage: Stage) -> None:
    async with stage.started(WIDE, events=None) as pilot:
        await stage.send(pilot, "far too long")
        stage.composer.put("typed ahead")
        stage.engine.fail("the prompt has 9 tokens and the context holds 4: shorten it")
        await stage.settle(pilot)
        assert stage.app.chat_screen.typed == "far too long\n\ntyped ahead"
        assert stage.said[-1].startswith("the prompt has 9 tokens and the context holds 4")
        assert len(stage.app.chat_screen.conversation.prompts) == 1
        assert [m.role for m in stage.store.messages(1)] == ["user", "assistant"]
        assert stage.store.unsent.texts()[1] == "far too long\n\ntyped ahead"
        await stage.answer(pilot, 30)
        stage.engine.fail("out of memory")
        await stage.settle(pilot)
        assert stage.composer.text == "", "a reply with text has been begun"
        assert any("✗ out of memory" in line for line in lines_of(stage))
        failed = stage.store.messages(1)[3]
        assert (bool(failed.content), failed.finish_reason) == (True, "error")


async def test_a_store_that_fails_does_not_stop_the_chat(stage: Stage) -> None:
    async with stage.started(WIDE) as pilot:
        stage.store.close()
        await stage.answer(pilot)
        assert any("… token limit" in line for line in lines_of(stage))
        assert any("chats are not stored" in notice for notice in stage.said)


async def test_without_a_store(stage: Stage) -> None:
    engine = RecordedEngine(trace())
    stage.engine = engine
    stage.app = SpecChat(lambda: Session(engine, Settings(), None, ("chats cannot be stored here",)))
    async with stage.started(WIDE) as pilot:
        assert stage.said == ["chats cannot be stored here"]
        await stage.answer(pilot)
        await stage.press(pilot, "ctrl+b", "d", "r", "u", "escape")
        assert any("… token limit" in line for line in lines_of(stage))


@pytest.mark.parametrize("size", [(1, 1), (47, 11), (300, 90)])
async def test_any_size(stage: Stage, size: tuple[int, int]) -> None:
    async with stage.started(size, "ctrl+t", "ctrl+g", "ctrl+b", "f1", "escape", events=None):
        assert stage.app.screen is stage.app.chat_screen


def test_damaged_lines_of_a_stored_reply_are_left_out() -> None:
    rounds = [r for r in trace() if isinstance(r, Round)][:5]
    lines = tuple(to_json(r) for r in rounds)
    text = "".join(r.text for r in rounds)
    assert Reply.stored(message_parts(text), "eos", lambda: lines).rounds == rounds
    damaged = Reply.stored(message_parts(text), "eos", lambda: (*lines[:2], '{"half', *lines[3:]))
    assert damaged.text == text
    assert not damaged.rounds


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "primary is missing: give it a colour"),
        (b"primary = 3\n", "primary is 3, which is not a colour"),
        (b"primary = 'reddish'", "primary is 'reddish'"),
        (b"name =", ""),
        (b"\xff\x00", "it is not text in UTF-8"),
        (None, "Is a directory"),
        (b'primary = "red"\n[fates]\nlost = "red"\n', "fates.lost is not a fate"),
    ],
)
async def test_a_malformed_theme_is_named_and_others_load(tmp_path: Path, content: bytes | None, why: str) -> None:
    bad = tmp_path / "themes" / "bad.toml"
    bad.parent.mkdir()
    bad.mkdir() if content is None else bad.write_bytes(content)
    (bad.parent / "mine.toml").write_text('primary = "red"\n')
    stage = Stage(tmp_path, file=tmp_path / "settings.toml")
    async with stage.started(WIDE):
        assert stage.said[0].startswith(f"theme {bad} is not used: {why}")
        assert "mine" in stage.app.available_themes


async def test_a_reply_looks_the_same_after_any_number_of_resizes(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    again = Stage(tmp_path / "again")
    async with again.started(WIDE, events=None):
        expected = lines_of(again)
    async with stage.started(WIDE, events=5) as pilot:
        for size in [(40, 10), (300, 90), (20, 5), (80, 24), (48, 12), (128, 30), (40, 10)] * 2:
            await pilot.resize_terminal(*size)
            await stage.give(pilot, 2)
        await pilot.resize_terminal(*WIDE)
        await stage.give(pilot)
        assert lines_of(stage) == expected
