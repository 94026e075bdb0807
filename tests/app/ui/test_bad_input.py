"""Unusual input gets a clear sentence or a sensible display, and nothing is lost."""

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from specchat.app.ui.screens.dialogs import SystemScreen
from tests.app.stage import WIDE, Stage, lines_of

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "primary is missing: give it a colour"),
        (b"primary = 3\n", "primary is 3, which is not a colour"),
        (b"primary = 'reddish'", "primary is 'reddish'"),
        (b"name =", ""),
        (b"\xff\x00", "it is not text in UTF-8"),
        (None, "Is a directory"),
        (b'primary = "red"\n[fates]\nlost = "red"\n', "fates.lost is not a fate"),
    ],
)
async def test_a_malformed_theme_is_named_and_others_load(tmp_path: Path, content: bytes | None, why: str) -> None:
    bad = tmp_path / "themes" / "bad.toml"
    bad.parent.mkdir()
    bad.mkdir() if content is None else bad.write_bytes(content)
    (bad.parent / "mine.toml").write_text('primary = "red"\n')
    stage = Stage(tmp_path, file=tmp_path / "settings.toml")
    async with stage.started(WIDE):
        assert stage.said[0].startswith(f"theme {bad} is not used: {why}")
        assert "mine" in stage.app.available_themes


async def test_themes_that_cannot_be_read_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def glob(_folder: Path, pattern: str) -> list[Path]:
        if pattern == "*.toml":
            raise PermissionError(errno.EACCES, "Permission denied")
        return []

    monkeypatch.setattr(Path, "glob", glob)
    stage = Stage(tmp_path, file=tmp_path / "settings.toml")
    async with stage.started(WIDE):
        assert stage.said[0] == f"{tmp_path / 'themes'} cannot be read: Permission denied"


async def test_sampling_settings_without_effect_are_said(stage: Stage) -> None:
    async with stage.started(WIDE) as pilot:
        for line, told in (("/top-p 0.9", True), ("/top-p off", False), ("/temp 0.8", False), ("/top-p 0.9", False)):
            await stage.send(pilot, line)
            assert stage.said[-1].endswith("without effect at temperature 0: /temp 0.8") is told
        await stage.send(pilot, "/top-p 0")
        assert stage.said[-1] == "top-p is 0: it must be above 0 and at most 1"


async def test_a_context_beyond_the_models_is_said(tmp_path: Path) -> None:
    stage = Stage(tmp_path, context=10**30)
    stage.engine._ready = replace(stage.engine._ready, context=2048)
    async with stage.started(WIDE):
        assert stage.said == ["smollm2-135m reads at most 2,048 tokens: this is the context"]


async def test_a_system_prompt_of_100_kb_is_kept_whole(stage: Stage) -> None:
    text = "word " * 19_999 + "end"
    async with stage.started(WIDE) as pilot:
        await stage.send(pilot, f"/system {text}")
        await stage.press(pilot, "ctrl+o", "escape")
        await stage.send(pilot, "/system")
        assert isinstance(stage.app.screen, SystemScreen)
        await stage.press(pilot, "ctrl+s")
        await stage.answer(pilot, 10)
        assert stage.engine.submitted[0].messages[0].content == text
        assert stage.store.chats()[0].system == text


async def test_a_reply_looks_the_same_after_any_number_of_resizes(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    again = Stage(tmp_path / "again")
    async with again.started(WIDE, events=None):
        expected = lines_of(again)
    async with stage.started(WIDE, events=5) as pilot:
        for size in [(40, 10), (300, 90), (20, 5), (80, 24), (48, 12), (128, 30), (40, 10)] * 2:
            await pilot.resize_terminal(*size)
            await stage.give(pilot, 2)
        await pilot.resize_terminal(*WIDE)
        await stage.give(pilot)
        assert lines_of(stage) == expected
