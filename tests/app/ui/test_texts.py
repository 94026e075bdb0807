"""System prompts, templates and prompts in an external editor: written, saved, used, sent, exported."""

import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, TextArea

from specchat.app.chat.exchange import as_markdown
from specchat.app.settings.settings_file import load_settings
from specchat.app.ui.actions.prompt import NO_EDITOR
from specchat.app.ui.screens.dialogs import TemplateScreen
from specchat.app.ui.widgets.prompt_frame import PromptFrame
from specchat.engine import JSON_OBJECT, Message
from tests.app.stage import QUESTION, Stage
from tests.app.views import NARROW, WIDE, screen_of
from tests.terminal import Terminal

pytestmark = pytest.mark.slow


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """The app with a settings file in a separate folder."""
    folder = tmp_path / "config"
    stage = Stage(tmp_path, file=folder / "settings.toml")
    (folder / "templates").mkdir(parents=True)
    (folder / "templates" / "translate.md").write_text("Translate into {{language}}: {{text}}")
    return stage


async def writing(stage: Stage, pilot: Pilot[None]) -> None:
    await stage.ready(pilot)
    await stage.send(pilot, "/system")
    stage.app.screen.query_one("#form-text", TextArea).load_text("Answer like a pirate, in two sentences.")
    await stage.settle(pilot)


async def filling(stage: Stage, pilot: Pilot[None]) -> None:
    await stage.ready(pilot)
    await stage.send(pilot, "/template translate")


async def following(stage: Stage, pilot: Pilot[None]) -> None:
    await writing(stage, pilot)
    await stage.press(pilot, "ctrl+s")
    file = stage.database.parent / "the-meeting-of-a-team-with-its-participants.schema.json"
    file.write_text('{"type": "object"}')
    await stage.send(pilot, f"/schema {file}")
    await stage.answer(pilot)


async def test_a_system_prompt_is_sent_stored_shown_and_exported(stage: Stage) -> None:
    async with stage.after(writing, WIDE) as pilot:
        await stage.press(pilot, "ctrl+s")
        await stage.answer(pilot)
        text = "Answer like a pirate, in two sentences."
        assert stage.engine.submitted[0].messages == (Message("system", text), Message("user", QUESTION))
        assert stage.store.chats()[0].system == text
        assert "system: Answer like a pirat" in str(screen_of(stage).query_one(PromptFrame).border_title)
        assert text in as_markdown(screen_of(stage).conversation, "m")
        await stage.send(pilot, "/system-save pirate")
        await stage.send(pilot, "/system-default")
        await stage.press(pilot, "ctrl+n")
        await stage.send(pilot, "/system off")
        await stage.send(pilot, "Plainly")
        assert stage.engine.submitted[1].messages == (Message("user", "Plainly"),)
        await stage.press(pilot, "ctrl+n")
        await stage.send(pilot, "By default")
        assert stage.engine.submitted[2].messages[0] == Message("system", text)
    settings, _ = load_settings(stage.database.parent / "config" / "settings.toml")
    assert settings.system == text
    assert (stage.database.parent / "config" / "system" / "pirate.md").read_text() == f"{text}\n"


async def test_replies_of_a_chat_follow_a_schema(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "good.json").write_text('{"type": "object"}')
    (tmp_path / "bad.json").write_text('{"$ref": "https://example.com/x.json"}')
    async with stage.started() as pilot:
        assert "which is never fetched" in await stage.send(pilot, f"/schema {tmp_path / 'bad.json'}")
        await stage.answer(pilot, text="One")
        assert "JSON that follows its schema" in await stage.send(pilot, f"/schema {tmp_path / 'good.json'}")
        frame = screen_of(stage).query_one(PromptFrame)
        assert "schema: good.json" in str(frame.border_title)
        await stage.answer(pilot, text="Two")
        assert "free text" in await stage.send(pilot, "/schema OFF")
        assert "schema" not in str(frame.border_title)
        await stage.answer(pilot, text="Three")
    assert [request.constraint for request in stage.engine.submitted] == [None, JSON_OBJECT, None]


async def test_system_prompts_are_saved_taken_and_deleted_in_their_form(stage: Stage) -> None:
    text, file = "Answer like a pirate, in two sentences.", stage.database.parent / "config" / "system" / "pirate.md"
    async with stage.after(writing, NARROW) as pilot:
        await stage.press(pilot, "tab", *"a/b", "enter")
        assert "'a/b' cannot name a system prompt" in str(stage.app.screen.query_one("#form").border_subtitle)
        stage.app.screen.query_one(Input).value = "pirate"
        await stage.press(pilot, "enter")
        assert file.read_text() == f"{text}\n"
        area = stage.app.screen.query_one("#form-text", TextArea)
        area.load_text("Something else.")
        await stage.press(pilot, "shift+tab", "enter")
        assert (area.text, area.has_focus) == (text, True)
        await stage.press(pilot, "ctrl+z", "d")  # a letter of the text
        assert "Something" in area.text
        await stage.press(pilot, "tab", "d", "ctrl+s")
        assert not file.exists()
        await stage.send(pilot)
        assert stage.engine.submitted[0].messages[0] == Message("system", text)


async def test_a_template_asks_for_its_variables(stage: Stage) -> None:
    file = stage.database.parent / "config" / "templates" / "translate.md"
    file.write_text("Translate into {{language}}: {{größe}}")
    async with stage.after(filling, NARROW) as pilot:
        assert isinstance(stage.app.screen, TemplateScreen)
        await stage.press(pilot, "enter")
        assert "language is empty" in str(stage.app.screen.query_one("#form").border_subtitle)
        for field, value in zip(stage.app.screen.query(Input), ("French", "a cat"), strict=True):
            field.value = value
        assert await stage.typed(pilot, "enter") == "Translate into French: a cat"


@pytest.mark.parametrize("line", ["/template unknown", "/system-save x/y", "/system-save x"])
async def test_what_is_not_there_is_named(stage: Stage, line: str) -> None:
    async with stage.started(NARROW) as pilot:
        await stage.send(pilot, line)
        assert len(stage.said) == 1
        assert stage.composer.text == line


@pytest.mark.parametrize("step", [writing, filling, following])
def test_looks(snap_compare: Any, stage: Stage, step: Any) -> None:
    assert snap_compare(stage.app, terminal_size=WIDE, run_before=partial(step, stage))


APPENDS = "import sys, os; f = open(sys.argv[-1], 'a'); f.write(' and tea\\nplease\\n'); f.close()"
TEXT = "Tell me about cake"


def edited_by(folder: Path, program: str) -> str:
    """A command line that runs this program on the file, with an argument that has a space."""
    script = folder / "my editor.py"
    script.write_text(program)
    return f'"{sys.executable}" "{script}" "an argument"'


async def test_the_text_is_taken_over(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private = "import os, sys, stat; assert stat.S_IMODE(os.stat(sys.argv[-1]).st_mode) == 0o600\n"
    monkeypatch.setenv("VISUAL", edited_by(tmp_path, private + APPENDS))
    monkeypatch.setenv("EDITOR", "nowhere")
    monkeypatch.setattr(stage.app, "suspend", nullcontext)
    async with stage.app.run_test(size=(80, 24)) as pilot:
        await stage.settle(pilot)
        stage.composer.put(TEXT)
        assert await stage.typed(pilot, "alt+e") == f"{TEXT} and tea\nplease"


@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        ("import sys; sys.exit(3)", "ended with status 3 · the prompt was not changed"),
        ("import sys, os; os.remove(sys.argv[-1])", "left no file · the prompt was not changed"),
        ("import sys; open(sys.argv[-1], 'wb').write(b'\\0\\1\\2')", "is not a text file"),
        ("pass", "the editor changed nothing"),
        (None, "no/such/editor cannot be run: No such file or directory · the prompt was not changed"),
        ("unended", "is not a command line"),
        ("", NO_EDITOR),
        ("unsuspended", "an editor cannot take over the screen here: write in the composer"),
    ],
)
async def test_whatever_goes_wrong_is_one_sentence_and_the_prompt_is_kept(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str | None, sentence: str
) -> None:
    line = {None: "no/such/editor -w", "": "  ", "unended": "nano 'x"}.get(program)
    monkeypatch.setenv("VISUAL", "")
    monkeypatch.setenv("EDITOR", edited_by(tmp_path, str(program)) if line is None else line)
    if program != "unsuspended":
        monkeypatch.setattr(stage.app, "suspend", nullcontext)
    async with stage.app.run_test(size=(80, 24)) as pilot:
        await stage.settle(pilot)
        stage.composer.put(TEXT)
        assert await stage.typed(pilot, "alt+e") == TEXT
        assert sentence in stage.said[-1]
        assert "\n" not in stage.said[-1]


def test_in_a_terminal_the_editor_has_the_screen_and_gives_it_back(tmp_path: Path) -> None:
    program = f"import sys; print('THE EDITOR'); sys.stdin.readline(); {APPENDS}"
    line = edited_by(tmp_path, program)
    command = (sys.executable, "-m", "specchat", "--target", tmp_path / "none")
    with Terminal(*command, columns=80, rows=24, SPECCHAT_HOME=str(tmp_path), VISUAL=line) as terminal:
        terminal.wait_for("Ask anything")
        terminal.type("Tell me", "Tell me")
        terminal.type("\x1be", "THE EDITOR")
        terminal.type("\n", "Tell me and tea please")
        terminal.type("\x7f" * 6 + "now", "Tell me and tea now")
        assert terminal.leave("\x11") == 0
