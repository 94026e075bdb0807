"""A theme that is chosen while a chat is open looks as if the app had started with it."""

from pathlib import Path
from typing import Any

import pytest

from specchat.app.ui import themes
from tests.app.stage import Stage

KEYS = {"tokens": (), "markdown": ("ctrl+t",)}
SCREENS = {
    "inspector": ("f6",), "help": ("f1",), "figures": ("f6", "d"), "theory": ("f6", "h"), "controls": ("f9",),
    "drafts": ("f6", "c"), "models": ("ctrl+backslash",), "messages": ("ctrl+e",), "context": ("alt+c",),
}  # fmt: skip
OF_EVERY_DAY = ("inspector", "theory", "controls")
THEMES = ("dracula", "rose-pine-dawn", "ansi-dark", "ansi-light")


async def cells(folder: Path, first: str, theme: str, keys: tuple[str, ...]) -> list[Any]:
    """The cells of the screen with two replies, in a theme that was chosen after they came."""
    folder.mkdir()
    stage = Stage(folder, theme=first)
    async with stage.started() as pilot:
        await stage.answer(pilot)
        await stage.answer(pilot, 30)
        await stage.press(pilot, *keys)
        if first != theme:
            stage.app.theme = theme  # what the palette does
            await stage.settle(pilot)
        strips = stage.app.screen._compositor.render_strips()
        return [[(part.text, part.style and part.style.without_color, *colours(part)) for part in s] for s in strips]


def colours(part: Any) -> tuple[Any, ...]:
    return (part.style.color, part.style.bgcolor) if part.style else ()


@pytest.mark.parametrize(
    "name",
    [*KEYS, *(name if name in OF_EVERY_DAY else pytest.param(name, marks=pytest.mark.slow) for name in SCREENS)],
)
async def test_every_part_of_a_screen_has_the_new_colours(tmp_path: Path, name: str) -> None:
    await check(tmp_path, themes.LIGHT.name, (KEYS | SCREENS)[name])


@pytest.mark.slow
@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", KEYS)
async def test_a_theme_reaches_an_open_reply_in_both_views(tmp_path: Path, name: str, theme: str) -> None:
    await check(tmp_path, theme, KEYS[name])


async def check(folder: Path, theme: str, keys: tuple[str, ...]) -> None:
    changed = await cells(folder / "changed", themes.DARK.name, theme, keys)
    started = await cells(folder / "started", theme, theme, keys)
    assert [y for y, (one, other) in enumerate(zip(changed, started, strict=True)) if one != other] == []


async def test_an_unknown_theme_of_the_settings_is_reported(tmp_path: Path) -> None:
    stage = Stage(tmp_path, theme="pink")
    async with stage.started():
        assert stage.app.theme == themes.DARK.name
        assert stage.said[0].startswith("theme 'pink' is not known: choose one of specchat-dark, specchat-light")
