"""Models in the app: choosing, loading, unloading, and which reply came from what."""

from dataclasses import replace
from pathlib import Path

import pytest
from textual.widgets import Static

from specchat.app.settings.settings import Settings
from specchat.app.settings.settings_file import load_settings
from specchat.app.sources.pull import PullState
from specchat.app.ui.actions import models as download_actions
from specchat.app.ui.screens.models import ModelsScreen
from specchat.app.ui.widgets.panel import SetUpCard
from specchat.engine import Died, Round, to_json
from tests.app.choosing import Choosing, shown
from tests.app.recorded import trace
from tests.app.stage import FOLLOW_UP, QUESTION, Stage, lines_of
from tests.app.storage.helpers import add_turn
from tests.app.views import NARROW, WIDE, screen_of, text_of

pytestmark = pytest.mark.slow


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Choosing:
    """A stage with nothing to download."""
    monkeypatch.setattr(download_actions, "downloads", lambda _: {})
    return Choosing(tmp_path)


async def test_another_model_is_loaded_and_each_reply_says_what_it_came_from(stage: Choosing) -> None:
    async with stage.started(WIDE, events=None) as pilot:
        assert not any("smollm2-135m ·" in line for line in lines_of(stage))
        await stage.send(pilot, "/model qwen3-1.7b qwen3-0.6b")
        (settings, engine), *_ = stage.made
        assert (settings.target, settings.draft, settings.drafter) == ("qwen3-1.7b", "qwen3-0.6b", "auto")
        assert stage.first.closed
        await stage.send(pilot, FOLLOW_UP)
        assert engine.submitted == []
        await stage.ready(pilot)
        await stage.give(pilot)
        assert [message.content for message in engine.submitted[0].messages][-1] == FOLLOW_UP
        assert len(engine.submitted[0].messages) == 3
        transcript = screen_of(stage).transcript
        notes = [strip.text for strip in transcript.all_lines()[0] if "token limit" in strip.text]
        assert ["smollm2-135m · " in notes[0], "qwen3-1.7b · " in notes[1]] == [True, True]
    again = Stage(stage.database.parent)
    assert [m.model for m in again.store.messages(1) if m.role == "assistant"] == ["smollm2-135m", "qwen3-1.7b"]
    assert again.store.models() == ["qwen3-1.7b", "smollm2-135m"]


async def test_a_name_of_no_model_leaves_the_loaded_one(tmp_path: Path) -> None:
    stage = Choosing(tmp_path)
    async with stage.started(WIDE) as pilot:
        for name in ("nope", "~nosuchuser/x.gguf", "x" * 300):
            await stage.send(pilot, f"/model {name}")
            await stage.settle(pilot)
            assert any(name[:9] in notice for notice in stage.said), stage.said
            assert stage.composer.text == f"/model {name}"
        assert not stage.first.closed
        assert stage.made == []


async def test_a_model_is_the_next_start_s_once_it_is_ready(stage: Choosing, tmp_path: Path) -> None:
    file = tmp_path / "config" / "settings.toml"
    stage.file = file
    async with stage.started(WIDE) as pilot:
        await stage.send(pilot, "/model smollm2-135m nope")
        await stage.settle(pilot)
        stage.made[0][1].tell(Died("there is no draft model nope", 0.0))
        await stage.settle(pilot)
        await stage.send(pilot, "/model qwen3-1.7b none")
        await stage.settle(pilot)
        assert load_settings(file)[0] == Settings()
        stage.engine.become_ready()
        await stage.settle(pilot)
    assert load_settings(file)[0].target == "qwen3-1.7b"


async def test_each_model_has_the_settings_that_it_had_last(stage: Choosing, tmp_path: Path) -> None:
    file = tmp_path / "config" / "settings.toml"
    file.parent.mkdir()
    file.write_text("top_k = 5\n")
    stage.settings, stage.file = replace(stage.settings, top_k=5), file
    async with stage.started(WIDE) as pilot:
        for line in ("/temp 0.3", "/max-tokens 99", "/system Be brief.", "/system-default", "/top-k 7", "/gamma 4"):
            await stage.send(pilot, line)
        for line, expected in (
            ("/model qwen3-1.7b qwen3-0.6b", (None, 99, "", 5, None, "qwen3-0.6b", "auto")),
            ("/drafter model", None),
            ("/model smollm2-135m", (0.3, 99, "Be brief.", 7, 4, "", "auto")),
            ("/model qwen3-1.7b", (None, 99, "", 5, None, "qwen3-0.6b", "model")),
        ):
            await stage.send(pilot, line)
            stage.engine.ready = replace(stage.engine.ready, drafters=("model", "suffix"))
            stage.engine.become_ready()
            await stage.settle(pilot)
            s = stage.made[-1][0]
            shown = (s.temperature, s.max_tokens, s.system, s.top_k, s.gamma, s.draft, s.drafter)
            assert expected in (None, shown), line
    again, _ = load_settings(file)
    assert (again.target, again.drafter, again.temperature, again.max_tokens) == ("qwen3-1.7b", "model", None, 99)
    again, _ = load_settings(file, {"target": "smollm2-135m", "gamma": 2})
    assert (again.temperature, again.gamma, again.draft) == (0.3, 2, "")


async def test_unloaded_models_are_loaded_by_the_next_prompt(stage: Choosing) -> None:
    async with stage.started(WIDE, events=None) as pilot:
        machine, card = screen_of(stage).query_one("#machine", Static), screen_of(stage).query_one(SetUpCard)
        assert (machine.display, "memory" in text_of(card)) == (True, True)
        await stage.send(pilot, "/unload")
        assert (machine.display, "memory" in text_of(card)) == (False, False)
        assert stage.first.closed
        assert stage.said[-1] == "unloaded · the next prompt reloads smollm2-135m"
        assert (await stage.send(pilot, "/continue")).startswith("no model is ready: wait until one is loaded")
        await stage.send(pilot, QUESTION)
        await stage.settle(pilot)
        (settings, engine), *_ = stage.made
        assert settings.target == "smollm2-135m"
        await stage.ready(pilot)
        assert len(engine.submitted) == 1


async def test_after_a_model_that_cannot_be_loaded_another_can_be_chosen(stage: Choosing) -> None:
    async with stage.started(WIDE, events=None) as pilot:
        before = len(screen_of(stage).conversation.prompts)
        await stage.send(pilot, "/model qwen3-0.6b")
        stage.made[0][1].die("there is no file or folder /x: check the path")
        await stage.settle(pilot)
        assert "there is no file or folder /x" in stage.said[-1]
        assert len(screen_of(stage).conversation.prompts) == before
        await stage.send(pilot, "/model smollm2-135m")
        stage.made[1][1].become_ready()
        await stage.settle(pilot)
        await stage.send(pilot, FOLLOW_UP)
        assert len(stage.made[1][1].submitted) == 1


@pytest.mark.parametrize(
    ("model", "imported", "sentence"),
    [
        ("qwen3-0.6b", False, "qwen3-0.6b, /model qwen3-0.6b loads it; smollm2-135m answers now"),
        ("gpt-4o", True, "gpt-4o, in another program; smollm2-135m answers now"),
        ("/gone/old.gguf", False, "old.gguf, which no longer exists; smollm2-135m answers now"),
    ],
)
async def test_a_chat_of_another_model_says_so(stage: Choosing, model: str, imported: bool, sentence: str) -> None:
    chat = stage.store.create_chat("old").id
    rounds = [record for record in trace() if isinstance(record, Round)][:4]
    text = "".join(record.text for record in rounds)
    add_turn(stage.store, chat, "hello", text, *([] if imported else map(to_json, rounds)), model=model)
    async with stage.started(WIDE, "ctrl+b", "home", "enter"):
        assert stage.said[-1] == f"the last reply came from {sentence}"
        assert any(text.split()[0] in line for line in lines_of(stage))


async def test_the_list_of_models(stage: Choosing, monkeypatch: pytest.MonkeyPatch) -> None:
    async with stage.app.run_test(size=NARROW) as pilot:
        await shown(stage, pilot, monkeypatch)
        pull = stage.app.actions.models.downloads.pulls["qwen3.5-4b"]
        monkeypatch.setattr(pull, "start", lambda: setattr(pull, "state", PullState.RUNNING))
        await stage.press(pilot, "j", "p")
        assert pull.running
        assert isinstance(await stage.press(pilot, "j", "d"), ModelsScreen)
        assert "vocabulary" in stage.said[-1]
        await stage.press(pilot, "enter")
        assert stage.made[0][0].target == "qwen3-0.6b"
