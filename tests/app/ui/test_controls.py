"""The panel of controls, by key and by mouse."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input

from specchat.app.chat.exchange import as_json, read_chats
from specchat.app.chat.stored_conversation import stored_conversation
from specchat.app.settings.controls import BY_NAME, CONTROLS, Value
from specchat.app.settings.named_files import Presets
from specchat.app.settings.settings import Settings
from specchat.app.ui.screens.controls import ControlList, ControlsScreen
from specchat.app.ui.widgets.masthead import Masthead
from specchat.engine import Admitted, Ready, Sampling
from tests.app.recorded import RecordedEngine, trace
from tests.app.stage import Stage, run
from tests.app.views import WIDE, answered

NAMES = [control.name for control in CONTROLS if not control.by_template]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return kept(tmp_path)


def kept(folder: Path, theme: str = "", **settings: object) -> Stage:
    """The app with a settings file."""
    return Stage(folder, theme=theme, file=folder / "settings.toml", **settings)


def settings(stage: Stage) -> Settings:
    assert stage.app.requests.settings is not None
    return stage.app.requests.settings


def shown(stage: Stage) -> list[str]:
    return stage.app.screen.query_one(ControlList).render().plain.split("\n")


async def test_the_mouse_steps(stage: Stage) -> None:
    async with stage.started(WIDE, "ctrl+o") as pilot:
        controls = stage.app.screen.query_one(ControlList)
        y = next(y for y, line in enumerate(shown(stage)) if "temperature" in line)
        left, top = controls.content_region.offset
        await stage.click(pilot, offset=(left + 4, top + y))
        await stage.click(pilot, offset=(left + shown(stage)[y].index("▸", 4), top + y))
        assert settings(stage).temperature == 0


async def test_values_are_typed(stage: Stage) -> None:
    async with stage.started(WIDE, "ctrl+o", "down", "down", "enter") as pilot:
        field = stage.app.screen.query_one(Input)
        assert field.has_focus
        field.value = "warm"
        await stage.press(pilot, "enter")
        assert stage.said[-1] == "temp 'warm' is not understood: it takes a number from 0 (greedy) to 5, or auto"
        assert field.has_focus
        field.value = "0.65"
        await stage.press(pilot, "enter")
        assert settings(stage).temperature == 0.65
        assert not field.display
        assert any("temperature   ◂ 0.65" in line for line in shown(stage))
        assert isinstance(await stage.press(pilot, "enter", "escape"), ControlsScreen)


async def test_the_models_own_sampling_is_the_default_and_greedy_one_key_away(stage: Stage) -> None:
    own = Sampling(0.6, 20, frequency_penalty=0.5)
    changes = {Ready: own, Admitted: own}
    records = [replace(r, sampling=changes[type(r)]) if type(r) in changes else r for r in trace()]
    stage.engine = RecordedEngine(records)
    async with stage.started(WIDE) as pilot:
        header = stage.app.chat_screen.query_one(Masthead).query_one("#models")
        for keys, said, expected in (
            ((), "", own),
            (("alt+g",), "temperature 0 greedy · ", replace(own, temperature=0.0)),
            (("alt+g",), "temperature auto (0.6) · ", own),
        ):
            await stage.press(pilot, *keys)
            assert (stage.said or [""])[-1].startswith(said)
            await stage.answer(pilot)
            assert stage.engine.submitted[-1].sampling == expected
            assert ("T 0.6" in str(header.render())) is (expected is own)
        await stage.send(pilot, "/temp 0.9")
        await stage.answer(pilot)
        assert stage.engine.submitted[-1].sampling == replace(own, temperature=0.9)
        ((chat, messages),), _ = read_chats(as_json(stage.app.chat_screen.conversation, ""))
        imported = stored_conversation(chat, messages).prompts[0].reply
        assert (imported.sampling, imported.rounds) == (own, stage.app.chat_screen.conversation.prompts[0].reply.rounds)


async def test_a_drafter_that_was_not_loaded_is_refused(tmp_path: Path) -> None:
    stage = kept(tmp_path, draft="smollm2-135m", drafter="ngram")
    async with stage.started(WIDE) as pilot:
        await stage.send(pilot, "/drafter model")
        assert stage.said[-1].startswith("the loaded models have no drafter 'model': choose one of auto, ")
        assert settings(stage).drafter == "ngram"


@pytest.mark.parametrize(
    ("name", "value", "by", "expected"),
    [
        ("gamma", None, 1, 0), ("gamma", 0, -1, None), ("gamma", 16, 1, 16), ("gamma", None, -1, None),
        ("temperature", 0.65, 1, 0.7), ("temperature", 0.65, -1, 0.6), ("temperature", 9.0, 1, 2.0),
        ("top_p", 0.93, 1, 0.9), ("top_p", 0.93, -1, 0.95), ("top_p", 0.1, -1, 0.3), ("max_tokens", 1000, 1, 1024),
        ("seed", 500, -1, 100), ("seed", None, 1, 0), ("drafter", "auto", 1, "ngram"), ("drafter", "none", 1, "none"),
    ],
)  # fmt: skip
def test_steps(name: str, value: Value, by: int, expected: Value) -> None:
    assert BY_NAME[name].step(value, by, {"drafter": ("auto", "ngram", "none")}) == expected


def test_every_step_of_every_control_is_a_value_and_reads_back() -> None:
    for control in CONTROLS:
        for value in control.steps:
            if (control.name, value) not in (("drafter", "model"), ("drafter", "merged")):  # need draft models
                changed = control.put(Settings(), value)
                assert control.read(control.text(changed).split(" ")[0]) == value


LOOKS = {
    "open": (WIDE, "", ()), "open_narrow": ((80, 24), "", ("down", "down", "down")),
    "wrong": (WIDE, "", ("enter", "6", "0", "enter")),
}  # fmt: skip


@pytest.mark.parametrize("name", LOOKS)
def test_looks(snap_compare: Any, tmp_path: Path, name: str) -> None:
    size, theme, keys = LOOKS[name]
    stage = kept(tmp_path, theme=theme, temperature=0.7)
    Presets(tmp_path / "presets").save("fast", Settings())
    assert snap_compare(stage.app, terminal_size=size, run_before=run(stage, answered, "ctrl+o", *keys))
