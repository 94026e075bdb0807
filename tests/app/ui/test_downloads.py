"""What the app asks before it downloads a model."""

from dataclasses import replace
from pathlib import Path

import pytest
from textual.events import Key

from specchat.app.chat.request_manager import Session
from specchat.app.sources.source import NoSource
from specchat.app.ui.actions import models as download_actions
from specchat.app.ui.screens.dialogs import ChoiceScreen
from specchat.engine import EngineConfig
from specchat.engine.models import PRESETS, Machine
from tests.app.choosing import GB, Choosing
from tests.app.stage import FOLLOW_UP, QUESTION, lines_of
from tests.app.views import NARROW

pytestmark = pytest.mark.slow


def to_download(config: EngineConfig) -> dict[str, int]:
    names = (config.target, *config.drafts)
    return {name: PRESETS[name].download_bytes(gpu=False) for name in names if name in PRESETS and "135m" not in name}


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Choosing:
    """A stage whose target has to be downloaded."""
    monkeypatch.setattr(download_actions, "downloads", to_download)
    monkeypatch.setattr(Machine, "now", lambda _: Machine(8 * GB, 90 * GB, 24e9))
    stage = Choosing(tmp_path)
    settings = replace(stage.settings, target="qwen3.5-4b")
    stage.prepare = lambda: Session(NoSource(), settings, stage.store)  # type: ignore[method-assign]
    return stage


async def test_a_start_asks_before_it_downloads(stage: Choosing) -> None:
    async with stage.app.run_test(size=NARROW) as pilot:
        await stage.settle(pilot)
        assert isinstance(stage.app.screen, ChoiceScreen)
        await stage.press(pilot, "2")
        assert not stage.made
        await stage.send(pilot, QUESTION)
        not_here = "qwen3.5-4b is not on this machine: /model qwen3.5-4b downloads it"
        assert any(not_here[:40] in line for line in lines_of(stage))
        await stage.send(pilot, "/model qwen3.5-4b")
        await stage.press(pilot, "1")
        (made, engine), *_ = stage.made
        assert made.target == "qwen3.5-4b"
        await stage.ready(pilot)
        await stage.send(pilot, FOLLOW_UP)
        assert len(engine.submitted) == 1


async def test_the_question_at_the_start_waits_while_a_prompt_is_typed(stage: Choosing) -> None:
    async with stage.app.run_test(size=NARROW) as pilot:
        for key in "12":
            stage.app.post_message(Key(key, key))
        await stage.settle(pilot)
        assert stage.composer.text == "12"
        await stage.press(pilot, "enter")
        await stage.comes(pilot, lambda: isinstance(stage.app.screen, ChoiceScreen))
        assert not stage.made
        await stage.press(pilot, "2")
