"""Attached files and long pastes: completion, counting, sending, opening, removing, storing."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from textual.events import Paste
from textual.pilot import Pilot
from textual.widgets import TextArea

from specchat.app.chat.exchange import as_json, as_markdown, read_chats
from specchat.app.ui.screens.lists import AttachmentScreen, AttachmentsScreen
from specchat.app.ui.widgets.prompt_frame import Chips, CommandHint
from tests.app.stage import Stage, lines_of, run
from tests.app.views import NARROW, WIDE, screen_of

LONG = "\n".join(f"line {number} of a log" for number in range(10_000)) + "\n"
SIGN = "[pasted 10,000 lines · 189 kB]"
CODE = "def tea():\n    return 'hot'\n"


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """The app in a folder with some files."""
    work = tmp_path / "work"
    (work / "src").mkdir(parents=True)
    (work / "src" / "tea.py").write_text(CODE)
    (work / "notes.txt").write_text("Bring cake.\n")
    (work / "cat.png").write_bytes(b"\x89PNG\0\0")
    monkeypatch.chdir(work)
    return with_room(Stage(tmp_path))


def with_room(stage: Stage) -> Stage:
    """An engine with a long context; it counts a token for each word."""
    stage.engine.ready = replace(stage.engine.ready, context=100_000)
    return stage


def asked(stage: Stage) -> str:
    return stage.engine.submitted[-1].messages[-1].content


async def paste(stage: Stage, pilot: Pilot[None], text: str) -> None:
    stage.composer.post_message(Paste(text))
    await stage.settle(pilot)


async def attached(stage: Stage, pilot: Pilot[None]) -> None:
    """A prompt with a file and a long paste, one like it sent before."""
    await stage.ready(pilot)
    await stage.press(pilot, *"What does @src/tea.py do?", "enter")
    await stage.give(pilot)
    await stage.press(pilot, *"And @notes.txt with ")
    await paste(stage, pilot, LONG)
    await stage.counted(pilot)


@pytest.mark.slow
def test_looks(snap_compare: Callable[..., bool], stage: Stage) -> None:
    assert snap_compare(stage.app, terminal_size=NARROW, run_before=run(stage, attached, "alt+a"))


async def test_a_path_is_completed_named_counted_and_sent(stage: Stage) -> None:
    async with stage.started(WIDE, *"What is in @s") as pilot:
        assert "src/" in stage.app.screen.query_one(CommandHint).render().plain
        assert await stage.typed(pilot, "tab", "tab") == "What is in @src/tea.py"
        assert not stage.app.screen.query_one(CommandHint).display
        await stage.counted(pilot)
        assert "src/tea.py · 7 tokens" in stage.app.screen.query_one(Chips).render().plain
        await stage.press(pilot, "enter")
        assert asked(stage) == f"src/tea.py:\n```\n{CODE}```\n\nWhat is in @src/tea.py"
        await stage.give(pilot)
        assert "  ▌ ▤ src/tea.py · 7 tokens" in lines_of(stage)
        transcript = stage.app.chat_screen.transcript
        transcript.action_request("attachment", id(screen_of(stage).conversation.prompts[0]), (0,))
        await stage.settle(pilot)
        assert stage.app.screen.query_one(TextArea).text == CODE


async def test_attach_names_a_file_and_refuses_what_is_none(stage: Stage) -> None:
    async with stage.started(WIDE, *"/attach no") as pilot:
        assert await stage.typed(pilot, "tab") == "/attach notes.txt"
        stage.composer.put("/schema no")
        assert await stage.typed(pilot, "tab") == "/schema notes.txt"
        stage.composer.put("/attach notes.txt")
        await stage.press(pilot, "enter", *"read it", "enter")
        assert asked(stage).startswith("notes.txt:\n```\nBring cake.\n```\n\n@notes.txt read it")
        for path, sentence in (
            ("cat.png", "cat.png is not a text file: only text can be read"),
            ("gone.txt", "gone.txt cannot be read: No such file or directory"),
            ("src", "src is not a file: name a text file"),
        ):
            await stage.send(pilot, f"/attach {path}")
            assert (stage.said[-1], stage.composer.text) == (sentence, f"/attach {path}")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["", "/candidates 2 "])
async def test_a_file_that_vanishes_is_said_and_the_prompt_is_kept(stage: Stage, command: str) -> None:
    stage.settings = type(stage.settings)(temperature=0.7)
    async with stage.started(WIDE) as pilot:
        prompt = "What is in @notes.txt and @cat.png?"
        assert "cat.png is not a text file" in await stage.send(pilot, command + prompt)
        assert stage.composer.text == command + prompt
        stage.composer.put("What is in @notes.txt")
        await stage.counted(pilot)
        stage.composer.put(command + "What is in @notes.txt")
        Path("notes.txt").unlink()
        await stage.press(pilot, "enter")
        assert stage.said[-1] == "notes.txt is gone: bring it back, or take @notes.txt out of the prompt"
        assert stage.composer.text == command + "What is in @notes.txt"
        assert not stage.engine.submitted


async def test_a_long_paste_is_a_sign_that_is_sent_in_full(stage: Stage) -> None:
    async with stage.started(NARROW, *"Sum up ") as pilot:
        await paste(stage, pilot, LONG.replace("\n", "\r"))  # as terminals send it
        assert stage.composer.text == f"Sum up {SIGN}"
        await stage.press(pilot, *" please", "enter")
        assert asked(stage) == f"Sum up {LONG} please"
        await stage.give(pilot)
        conversation = screen_of(stage).conversation
        assert LONG in as_markdown(conversation, "").replace(f"Sum up {SIGN} please", "")
        imported, problems = read_chats(as_json(conversation, ""))
        assert not problems
        assert [one.text for one in imported[0][1][0].attachments] == [LONG]
        await stage.press(pilot, "up", "enter")
        assert asked(stage) == f"Sum up {LONG} please"


@pytest.mark.slow
async def test_a_paste_is_opened_expanded_and_removed_by_key(stage: Stage) -> None:
    text = "\n".join("abc" for _ in range(50))
    async with stage.started(WIDE, "alt+a") as pilot:
        assert stage.said[-1].startswith("nothing is attached")
        for keys, left in ((("enter", "escape"), "[pasted 50 lines · 199 B]!"), (("x",), f"{text}!"), (("d",), "!")):
            stage.composer.clear()
            await paste(stage, pilot, text)
            assert isinstance(await stage.press(pilot, "exclamation_mark", "alt+a"), AttachmentsScreen)
            await stage.press(pilot, keys[0])
            assert isinstance(stage.app.screen, AttachmentScreen) is (keys[0] == "enter")
            assert await stage.typed(pilot, *keys[1:]) == left
        stage.composer.clear()
        await paste(stage, pilot, text)
        assert await stage.typed(pilot, "backspace") == ""


async def test_a_file_is_removed_from_the_prompt_where_it_is_named(stage: Stage) -> None:
    for name in ("a.py", "a.py.orig"):
        Path(name).write_text(name)
    async with stage.started(WIDE) as pilot:
        stage.composer.put("compare @a.py.orig, me@a.py and (@a.py).")
        await stage.counted(pilot)
        assert await stage.typed(pilot, "alt+a", "down", "d") == "compare @a.py.orig, me@a.py and ()."


@pytest.mark.slow
async def test_an_edited_prompt_keeps_its_files_as_they_were(stage: Stage) -> None:
    async with stage.after(attached, WIDE) as pilot:
        unsent = stage.composer.text
        Path("src/tea.py").write_text("changed")
        await stage.press(pilot, *"x", "ctrl+e", "e")
        await stage.press(pilot, "end", *" Shortly.", "enter")
        assert CODE in asked(stage)
        assert asked(stage).endswith("What does @src/tea.py do? Shortly.")
        assert stage.composer.text == unsent + "x"
        await stage.give(pilot)
        await stage.press(pilot, "enter")
        assert "Bring cake." in asked(stage)
        assert LONG in asked(stage)


@pytest.mark.slow
async def test_unsent_text_comes_back_with_its_attachments(stage: Stage, tmp_path: Path) -> None:
    async with stage.after(attached, WIDE) as pilot:
        stage.app.actions.chats.write()
    Path("notes.txt").write_text("Bring tea.\n")
    again = with_room(Stage(tmp_path))
    async with again.started(WIDE) as pilot:
        again.app.actions.chats.open(again.store.chats()[0])
        await again.settle(pilot)
        assert again.composer.text == f"And @notes.txt with {SIGN}"
        assert len(again.composer.attached) == 2
        await again.press(pilot, "enter")
        assert asked(again) == f"notes.txt:\n```\nBring tea.\n```\n\nAnd @notes.txt with {LONG}"
