"""The two levels of detail: the chat view, and the instruments on request."""

from pathlib import Path

from specchat.app.settings.settings_file import load_settings
from specchat.app.ui.widgets.composer import Composer
from specchat.app.ui.widgets.inspector import Inspector
from specchat.app.ui.widgets.panel import Panel
from specchat.app.ui.widgets.timeline import Timeline
from tests.app.stage import Stage, lines_of
from tests.app.views import NARROW, WIDE, screen_of


def started_with(folder: Path, **settings: object) -> Stage:
    """The app as it starts with the settings file of this folder, and can load models."""
    folder.mkdir(exist_ok=True)
    file = folder / "settings.toml"
    stage = Stage(folder, file=file)
    stage.settings = load_settings(file, settings)[0]
    stage.app.actions.make_source = lambda _: stage.engine
    return stage


def instruments(stage: Stage) -> list[bool]:
    """Whether panel and timeline are displayed."""
    return [stage.app.chat_screen.query_one(kind).display for kind in (Panel, Timeline)]


async def test_the_view_is_switched_with_one_key_and_remembered(tmp_path: Path) -> None:
    first = started_with(tmp_path)
    async with first.started(WIDE, events=None):
        assert instruments(first) == [True, True]  # the first reply is watched
    later = started_with(tmp_path)
    async with later.started(WIDE, events=20) as pilot:
        assert instruments(later) == [False, False]
        assert not any("⊣" in line for line in lines_of(later))  # a growing reply is read without rejected drafts
        await later.press(pilot, "ctrl+g")
        assert instruments(later) == [True, True]
        assert any("⊣" in line for line in lines_of(later))
    assert load_settings(tmp_path / "settings.toml")[0].view == "watch"


async def test_letters_are_keys_of_the_details_and_text_elsewhere(tmp_path: Path) -> None:
    stage = Stage(tmp_path, view="chat")
    async with stage.started(NARROW, events=30) as pilot:
        screen, transcript = screen_of(stage), screen_of(stage).transcript
        await stage.press(pilot, *"slt")
        assert screen.query_one(Composer).text == "slt"
        assert not transcript.by_round
        await stage.press(pilot, "ctrl+l", "l")
        assert screen.query_one(Inspector).display
        assert transcript.by_round
        await stage.press(pilot, "s", "s")
        assert stage.engine.paused
        await stage.press(pilot, "escape")  # which ends all of it
        assert not screen.query_one(Inspector).display
        assert not transcript.by_round
        assert not stage.engine.paused
        assert screen.query_one(Composer).text == "slt"
