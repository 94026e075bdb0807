"""A theme is shown while it is chosen, and stored."""

from pathlib import Path

import pytest

from specchat.app.settings.settings_file import load_settings
from tests.app.ui.test_controls import kept

pytestmark = pytest.mark.slow


async def test_themes_are_shown_while_one_is_chosen_and_only_that_one_is_stored(tmp_path: Path) -> None:
    stage = kept(tmp_path)
    names = sorted(stage.app.available_themes)
    async with stage.started() as pilot:
        before, place = stage.app.theme, names.index(stage.app.theme)
        await stage.send(pilot, "/theme")
        await stage.press(pilot, "up")
        assert stage.app.theme == names[place - 1] != before
        await stage.press(pilot, "escape")
        assert stage.app.theme == before
        assert not (tmp_path / "settings.toml").exists()
        await stage.send(pilot, "/theme")
        await stage.press(pilot, *["up"] * (place - names.index("dracula")), "enter")
        assert stage.app.theme == "dracula"
    assert load_settings(tmp_path / "settings.toml")[0].theme == "dracula"
