"""System prompts and templates in the app: written, saved, used, sent, exported."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, TextArea

from specchat.app.chat.exchange import as_markdown
from specchat.app.settings.settings_file import load_settings
from specchat.app.ui.screens.dialogs import SystemScreen, TemplateScreen
from specchat.app.ui.widgets.prompt_frame import PromptFrame
from specchat.engine import Message
from tests.app.stage import QUESTION, Stage
from tests.app.views import NARROW, WIDE, screen_of

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


async def test_a_system_prompt_is_sent_stored_shown_and_exported(stage: Stage) -> None:
    async with stage.after(writing, WIDE) as pilot:
        await stage.press(pilot, "ctrl+s")
        await stage.answer(pilot)
        text = "Answer like a pirate, in two sentences."
        assert stage.engine.submitted[0].messages == (Message("system", text), Message("user", QUESTION))
        assert stage.store.chats()[0].system == text
        assert "system: Answer like a pirate" in str(screen_of(stage).query_one(PromptFrame).border_title)
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


async def test_escape_keeps_the_system_prompt_as_it_was(stage: Stage) -> None:
    async with stage.after(writing, NARROW) as pilot:
        assert isinstance(stage.app.screen, SystemScreen)
        await stage.press(pilot, "escape")
        await stage.send(pilot)
        assert stage.engine.submitted[0].messages == (Message("user", QUESTION),)


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
        await stage.press(pilot, "enter")
        assert stage.composer.text == "Translate into French: a cat"


@pytest.mark.parametrize(("title", "text"), [("Attach a file", "Sum up @"), ("Template short", "Sum up, in short")])
async def test_the_palette_keeps_what_was_typed(stage: Stage, title: str, text: str) -> None:
    (stage.database.parent / "config" / "templates" / "short.md").write_text(", in short")
    async with stage.started(NARROW) as pilot:
        stage.composer.put("Sum up")
        commands = {command.title: command.callback for command in stage.app.get_system_commands(stage.app.screen)}
        commands[title]()
        assert stage.composer.text == text
        await stage.press(pilot, "ctrl+z")
        assert stage.composer.text == "Sum up"


@pytest.mark.parametrize("line", ["/template unknown", "/system-save x/y", "/system-save x"])
async def test_what_is_not_there_is_named(stage: Stage, line: str) -> None:
    async with stage.started(NARROW) as pilot:
        await stage.send(pilot, line)
        assert len(stage.said) == 1
        assert stage.composer.text == line


async def test_without_a_name_a_template_or_preset_is_chosen_or_it_is_said_how_to_save_one(stage: Stage) -> None:
    async with stage.started(NARROW) as pilot:
        await stage.send(pilot, "/preset")
        assert stage.said[-1] == "no preset is saved yet: /save NAME saves all controls as one"
        await stage.send(pilot, "/template")
        await stage.press(pilot, "1")
        assert isinstance(stage.app.screen, TemplateScreen)
        await stage.press(pilot, "escape")
        (stage.file.parent / "templates" / "translate.md").unlink()  # type: ignore[union-attr]
        await stage.send(pilot, "/template")
        assert stage.said[-1] == "no template is saved yet: /template-save NAME saves the last prompt as one"


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("step", [writing, filling])
def test_looks(snap_compare: Any, stage: Stage, step: Any, size: tuple[int, int]) -> None:
    assert snap_compare(stage.app, terminal_size=size, run_before=partial(step, stage))
