"""Slash commands: each command, errors, completion by tab."""

import json
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from specchat.app.settings.settings import DRAFTERS
from specchat.app.settings.settings_file import load_settings
from specchat.app.ui.action_table import SLASH_COMMANDS
from specchat.app.ui.screens.controls import ControlsScreen
from specchat.app.ui.screens.help import HelpScreen
from specchat.app.ui.widgets.prompt_frame import CommandHint
from tests.app.stage import QUESTION, WIDE, Stage
from tests.app.views import answered


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """The app with a settings file that a person wrote."""
    file = tmp_path / "config" / "settings.toml"
    file.parent.mkdir()
    file.write_text("# mine\nflux = 1\ngamma = 3  # short\n")
    stage = Stage(tmp_path, file=file)
    stage.settings, _ = load_settings(file)
    return stage


CONTROLS = [
    [
        ("/gamma 6", "gamma", 6, "γ 6 · from the next round on"),
        ("/temp 0.7", "temperature", 0.7, "temperature 0.7 · from the next reply on"),
        ("/top-p 0.9", "top_p", 0.9, "top-p 0.9 · from the next reply on"),
        ("/seed 7", "seed", 7, "seed 7 · from the next reply on"),
        ("/max-tokens 99", "max_tokens", 99, "max tokens 99 · from the next reply on"),
    ],
    [
        ("/gamma auto", "gamma", None, "γ auto · from the next round on"),
        ("/temperature 0", "temperature", 0.0, "temperature 0 greedy · from the next reply on"),
        ("/top-p off", "top_p", 1.0, "top-p off · from the next reply on"),
        ("/seed off", "seed", None, "seed off · from the next reply on"),
        ("/drafter none", "drafter", "none", "drafter none · from the next round on"),
    ],
]
"""A line, the setting that it changes, its value, and the notice: lines before one prompt, and before the next."""


async def test_every_control_is_confirmed_and_reaches_the_next_request(stage: Stage) -> None:
    async with stage.started(WIDE) as pilot:
        for number, lines in enumerate(CONTROLS):
            for line, _, _, sentence in lines:
                assert await stage.send(pilot, line) == sentence
            assert len(stage.engine.submitted) == number
            await stage.answer(pilot)
            request = stage.engine.submitted[-1]
            for _, name, value, _ in lines:
                assert getattr(request if hasattr(request, name) else request.sampling, name) == value, name


WRONG = {
    "/gamma six": "gamma 'six' is not understood: it takes a whole number from 0 (no drafting) to 16, or auto",
    "/gamma 99": "gamma is 99: it must be from 0 (no drafting) to 16",
    "/gamma": "/gamma needs a value; usage: /gamma N|auto",
    "/gama 4": "/gama is not a command (/gamma?): begin with // to send a text that starts with a slash",
    "/usr/bin": "/usr/bin is not a command (/help lists them): begin with // to send a text that starts with a slash",
    "/temp hot": "temp 'hot' is not understood: it takes a number from 0 (greedy) to 5, or auto",
    "/temp 9.5": "temperature is 9.5: it must be from 0 (greedy) to 5",
    "/temp nan": "temperature is nan: it must be from 0 (greedy) to 5",
    "/top-p 2": "top-p is 2: it must be above 0 and at most 1",
    "/drafter model": "drafter model needs a draft model: name one with --draft, or with /draft in a chat",
    "/drafter magic": f"drafter 'magic' is not known: choose one of {', '.join(DRAFTERS)}",
    "/preset fast": "preset 'fast' is not known: none is saved yet, /save NAME makes one",
    "/save ../up": "'../up' cannot name a preset: use letters, digits, and - . + _ between them",
    "/help me": "/help takes no argument",
    "/export pdf": "/export pdf is not understood: it takes md, json, svg, html",
    "/candidates 9 x": "/candidates takes a number from 2 to 8 followed by a prompt",
    "/candidates": "this chat has no prompt with several replies: /candidates 4 PROMPT requests four",
}


async def test_a_wrong_one_gets_one_sentence_and_stays(stage: Stage) -> None:
    async with stage.started(WIDE) as pilot:
        for number, (line, sentence) in enumerate(WRONG.items(), 1):
            await stage.send(pilot, line)
            assert len(stage.said) == number
            assert (stage.said[-1], stage.composer.text) == (sentence, line)
            assert await stage.typed(pilot, "escape") == ""
        assert not stage.engine.submitted


async def test_a_prompt_with_a_slash_comes_back_as_it_was_typed(stage: Stage, tmp_path: Path) -> None:
    text = "//etc/hosts explained"
    async with stage.started(WIDE, events=10) as pilot:
        assert await stage.typed(pilot, "slash", "slash", "ctrl+u") == ""
        assert not stage.app.screen.query_one(CommandHint).display
        await stage.send(pilot, text)
        assert await stage.typed(pilot, "escape") == text
        await stage.press(pilot, "enter")
        assert stage.engine.submitted[-1].messages[-1].content == text[1:]
    again = Stage(tmp_path)
    async with again.started(WIDE) as pilot:
        assert await again.typed(pilot, "up") == text


async def test_a_running_reply_takes_up_gamma_and_drafter_and_keeps_its_sampling(stage: Stage) -> None:
    async with stage.started(WIDE, events=10) as pilot:
        (request,) = stage.engine.submitted
        await stage.send(pilot, "/gamma 6")
        assert stage.engine.adjusted == [(request.request_id, "auto", 6)]
        assert stage.said[-1] == "γ 6 · from the next round on"
        await stage.send(pilot, "/drafter none")
        assert stage.engine.adjusted[-1] == (request.request_id, "none", 6)
        assert "the drafter is none, which drafts nothing: /drafter auto" in await stage.send(pilot, "/gamma 2")
        await stage.send(pilot, "/temp 0.5")
        assert stage.said[-1] == "temperature 0.5 · from the next reply on · the running reply keeps its settings"
        assert len(stage.engine.adjusted) == 3


async def test_what_is_set_is_stored_for_the_model_and_nothing_else_touched(stage: Stage, tmp_path: Path) -> None:
    async with stage.started(WIDE) as pilot:
        for line in ("/gamma 6", "/temp 0.7", "/seed 3", "/seed off", "/theme nord", "/min-p auto"):
            await stage.send(pilot, line)
    text = (tmp_path / "config" / "settings.toml").read_text()
    own = "[models.smollm2-135m]\ngamma = 6\ntemperature = 0.7\n"
    assert text == f'# mine\nflux = 1\ngamma = 3  # short\ntheme = "nord"\n\n{own}'


async def test_a_settings_file_that_broke_meanwhile_is_left_alone(stage: Stage, tmp_path: Path) -> None:
    file = tmp_path / "config" / "settings.toml"
    async with stage.started(WIDE) as pilot:
        file.write_text("gamma = = 1\n")
        await stage.send(pilot, "/gamma 6")
        stage.app.actions.preferences.close()  # type: ignore[union-attr]
        await stage.settle(pilot)
        assert any("not stored for the next start" in notice for notice in stage.said)
        assert stage.app.requests.settings.gamma == 6  # type: ignore[union-attr]
    assert file.read_text() == "gamma = = 1\n"


async def test_presets(stage: Stage, tmp_path: Path) -> None:
    async with stage.started(WIDE) as pilot:
        await stage.send(pilot, "/temp 0.7")
        await stage.send(pilot, "/save warm")
        file = tmp_path / "config" / "presets" / "warm.toml"
        assert "gamma = 3\n" in file.read_text()
        assert "temperature = 0.7\n" in file.read_text()
        await stage.send(pilot, "/save warm")
        assert stage.said[-1] == f"preset 'warm' exists already: choose another name, or delete {file}"
        await stage.send(pilot, "/temp 0")
        await stage.send(pilot, "/top-k 5")
        assert await stage.send(pilot, "/preset warm") == "preset warm"
        settings = stage.app.requests.settings
        assert (settings.temperature, settings.top_k, settings.gamma) == (0.7, None, 3)
        file.write_text("temperature = 'hot'\n")
        assert await stage.send(pilot, "/preset warm") == "temperature is 'hot': it must be a number or auto"
        assert stage.app.requests.settings is settings


async def test_other_commands(stage: Stage, tmp_path: Path) -> None:
    async with stage.started(WIDE) as pilot:
        assert await stage.send(pilot, "/export md") == "there is nothing to export yet"
        await stage.answer(pilot)
        await stage.send(pilot, "/export json")
        await stage.send(pilot, "/export json")
        first, second = sorted(tmp_path.glob("what-should*.json"))
        assert second.name == first.stem + "-2.json" or first.name == second.stem + "-2.json"
        (turn,) = json.loads(first.read_text())["turns"]
        assert turn["prompt"] == QUESTION
        rounds = turn["replies"][0]["rounds"]
        assert sum(r["accepted"] for r in rounds) == turn["replies"][0]["figures"]["accepted"]
        await stage.send(pilot, "/export md")
        assert f"## You\n\n{QUESTION}\n\n## smollm2-135m\n\n" in next(tmp_path.glob("*.md")).read_text()
        assert (await stage.send(pilot, "/theme nothing")).startswith("theme 'nothing' is not known: choose one of")
        await stage.send(pilot, "/help")
        assert isinstance(stage.app.screen, HelpScreen)
        await stage.press(pilot, "escape")
        await stage.send(pilot, "/new")
        assert not stage.app.chat_screen.conversation.prompts


async def test_tab_completes(stage: Stage) -> None:
    async with stage.started(WIDE) as pilot:
        assert await stage.typed(pilot, "slash", "g", "tab") == "/gamma "
        assert await stage.typed(pilot, "a", "tab") == "/gamma auto"
        stage.composer.load_text("/top")
        assert await stage.typed(pilot, "tab") == "/top-"
        seen = []
        for _ in range(3):
            await stage.press(pilot, "tab")
            seen.append(stage.composer.text)
        assert seen == ["/top-k ", "/top-p ", "/top-k "]
        stage.composer.load_text("/theme gru")
        assert await stage.typed(pilot, "tab") == "/theme gruvbox"
        await stage.press(pilot, "ctrl+u", "slash", "t", "h", "tab", "tab", "ctrl+u", "slash", *"theme", "space", "tab")
        assert stage.composer.text.startswith("/theme ")


async def test_arrows_and_enter_choose_from_the_menu(stage: Stage) -> None:
    async with stage.started(WIDE) as pilot:
        hint = stage.app.screen.query_one(CommandHint)
        await stage.press(pilot, "slash")
        assert hint.render().plain.splitlines()[0].startswith("▸ /new")
        await stage.press(pilot, "up")  # from the first to the last
        assert f"▸ /{SLASH_COMMANDS[-1].slash}" in hint.render().plain
        assert f"of {len(SLASH_COMMANDS)}" in hint.render().plain
        await stage.press(pilot, "down", "down", "up")
        lines = hint.render().plain.splitlines()
        assert lines[0].startswith("▸ /new")
        assert 10 <= len(lines) <= 14
        assert not any(line.endswith("…") for line in lines)
        assert isinstance(await stage.press(pilot, "c", "o", "n", "t", "r", "enter"), ControlsScreen)
        assert await stage.typed(pilot, "escape", "slash", "g", "a", "enter") == "/gamma "
        await stage.press(pilot, "down", "down", "enter")
        assert stage.said[-1] == "γ 0 · from the next round on"
        assert await stage.typed(pilot, "up") == "/gamma 0", "a prompt that was sent is recalled"
        assert await stage.typed(pilot, "up", "up") == "/controls"


LOOKS = {"hint_all": ("/", WIDE), "hint_values": ("/theme ", (80, 24))}


@pytest.mark.parametrize("name", LOOKS)
def test_looks(snap_compare: Any, stage: Stage, name: str) -> None:
    text, size = LOOKS[name]

    async def before(pilot: Pilot[None]) -> None:
        await answered(stage, pilot, 60)
        stage.app.chat_screen.put(text)
        await stage.settle(pilot)

    assert snap_compare(stage.app, terminal_size=size, run_before=before)
