"""The prompt in an external editor; it is not changed if anything goes wrong."""

import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from specchat.app.ui.actions.prompt import NO_EDITOR
from tests.app.stage import Stage
from tests.terminal import Terminal

pytestmark = pytest.mark.slow

APPENDS = "import sys, os; f = open(sys.argv[-1], 'a'); f.write(' and tea\\nplease\\n'); f.close()"
TEXT = "Tell me about cake"


def edited_by(folder: Path, program: str) -> str:
    """A command line that runs this program on the file, with an argument that has a space."""
    script = folder / "my editor.py"
    script.write_text(program)
    return f'"{sys.executable}" "{script}" "an argument"'


@pytest.mark.parametrize("way", ["alt+e", "/editor"])
async def test_the_text_is_taken_over(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    private = "import os, sys, stat; assert stat.S_IMODE(os.stat(sys.argv[-1]).st_mode) == 0o600\n"
    monkeypatch.setenv("VISUAL", edited_by(tmp_path, private + APPENDS))
    monkeypatch.setenv("EDITOR", "nowhere")
    monkeypatch.setattr(stage.app, "suspend", nullcontext)
    async with stage.app.run_test(size=(80, 24)) as pilot:
        await stage.settle(pilot)
        if way == "/editor":
            await stage.send(pilot, way)
            assert stage.composer.text == " and tea\nplease"
        else:
            stage.composer.put(TEXT)
            await stage.press(pilot, way)
            assert stage.composer.text == f"{TEXT} and tea\nplease"


async def said_and_kept(stage: Stage) -> list[str]:
    """The notices of an edit, which leaves the prompt as it was."""
    async with stage.app.run_test(size=(80, 24)) as pilot:
        await stage.settle(pilot)
        stage.composer.put(TEXT)
        await stage.press(pilot, "alt+e")
        assert stage.composer.text == TEXT
        return stage.said


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
    ],
)
async def test_whatever_goes_wrong_is_one_sentence_and_the_prompt_is_kept(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str | None, sentence: str
) -> None:
    line = {None: "no/such/editor -w", "": "  ", "unended": "nano 'x"}.get(program)
    monkeypatch.setenv("VISUAL", "")
    monkeypatch.setenv("EDITOR", edited_by(tmp_path, str(program)) if line is None else line)
    monkeypatch.setattr(stage.app, "suspend", nullcontext)
    said = await said_and_kept(stage)
    assert sentence in said[-1]
    assert "\n" not in said[-1]


async def test_without_a_terminal_to_hand_over_it_says_so(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDITOR", "true")
    assert await said_and_kept(stage) == ["an editor cannot take over the screen here: write in the composer"]


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
