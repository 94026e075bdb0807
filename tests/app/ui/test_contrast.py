"""Themes: text can be read and signs can be seen in each, and a changed theme looks as after a start with it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.segment import Segment
from textual.color import Color
from textual.screen import ModalScreen
from textual.theme import BUILTIN_THEMES

from specchat.app.ui import themes
from tests.app.stage import Stage, screen_strips

TEXT, SIGN = 4.5, 3.0
THEMES = [theme.name for theme in (themes.DARK, themes.LIGHT, *BUILTIN_THEMES.values()) if not theme.ansi]
SCREENS = {
    "watch": (), "markdown": ("ctrl+t",), "chats": ("ctrl+b",), "inspector": ("f6",), "help": ("f1",),
    "figures": ("f6", "d"), "theory": ("f6", "h"), "controls": ("f9",), "drafts": ("f6", "c"),
    "models": ("ctrl+backslash",), "messages": ("ctrl+e",), "context": ("alt+c",), "cache": ("alt+k",),
    "search": ("ctrl+k", "l"), "slash": ("/",), "palette": ("ctrl+p",), "keys": ("f6", "question_mark"),
    "lines": ("f6", "l"), "timeline": ("f6", "t"), "rename": ("ctrl+b", "r"), "side": ("ctrl+y",),
}  # fmt: skip


def cells(stage: Stage) -> Iterator[Segment]:
    """All segments of the screen; of a dialog those inside of its frame."""
    screen = stage.app.screen
    regions = [screen.region]
    if isinstance(screen, ModalScreen):
        regions = [child.region for child in screen.children if child.region]
    for y, strip in enumerate(screen._compositor.render_strips()):
        for region in regions:
            if y in region.line_range:
                yield from strip.crop(*region.column_span)


def is_sign(text: str) -> bool:
    """Whether a text has only lines, blocks and shapes."""
    return all(character.isspace() or "─" <= character <= "◿" or character in "·‖" for character in text)


def too_weak(stage: Stage) -> dict[str, float]:
    """Texts with too little contrast, except frames and bars in the colour of what has no focus."""
    found = {}
    quiet = Color.parse(stage.app.get_css_variables()["border"]).rgb
    for text, style, _ in cells(stage):
        if not text.strip() or style is None or style.color is None or style.bgcolor is None:
            continue
        one, other = (Color.from_rich_color(colour) for colour in (style.color, style.bgcolor))
        sign = is_sign(text)
        if sign and quiet in (one.rgb, other.rgb):
            continue
        ratio = themes.contrast(one, other)
        if ratio < (SIGN if sign else TEXT) or style.dim:
            found[f"{text.strip()} {one.hex} on {other.hex}"] = round(ratio, 1)
    return found


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", SCREENS)
async def test_everything_on_screen_can_be_read(tmp_path: Path, name: str) -> None:
    stage, found = Stage(tmp_path), {}
    stage.chats("Sort a list in place", "Lisbon in spring")
    async with stage.started() as pilot:
        await stage.answer(pilot)
        await stage.answer(pilot, 30)
        await stage.press(pilot, *SCREENS[name])
        for theme in THEMES:
            stage.app.theme = theme
            await stage.settle(pilot)
            if name == "palette":  # it keeps the colours in which it was opened
                await stage.press(pilot, "escape", *SCREENS[name])
            if weak := too_weak(stage):
                found[theme] = weak
    assert found == {}


VIEWS = {"tokens": (), "markdown": ("ctrl+t",)}
CHANGED = {
    "help": ("f1",), "figures": ("f6", "d"), "theory": ("f6", "h"), "inspector": ("f6",), "controls": ("f9",),
    "drafts": ("f6", "c"), "models": ("ctrl+backslash",), "messages": ("ctrl+e",), "context": ("alt+c",),
}  # fmt: skip


async def drawn_cells(folder: Path, first: str, theme: str, keys: tuple[str, ...]) -> list[Any]:
    """The drawn_cells of the screen with two replies, in a theme that was chosen after they came."""
    folder.mkdir()
    stage = Stage(folder, theme=first)
    async with stage.started() as pilot:
        await stage.answer(pilot)
        await stage.answer(pilot, 30)
        await stage.press(pilot, *keys)
        if first != theme:
            stage.app.theme = theme  # what the palette does
            await stage.settle(pilot)
        strips = screen_strips(stage.app)
        return [[(part.text, part.style and part.style.without_color, *colours(part)) for part in s] for s in strips]


def colours(part: Any) -> tuple[Any, ...]:
    return (part.style.color, part.style.bgcolor) if part.style else ()


@pytest.mark.daily(2)
@pytest.mark.parametrize("name", VIEWS | CHANGED)
async def test_every_part_of_a_screen_has_the_new_colours(tmp_path: Path, name: str) -> None:
    await check(tmp_path, themes.LIGHT.name, (VIEWS | CHANGED)[name])


async def check(folder: Path, theme: str, keys: tuple[str, ...]) -> None:
    changed = await drawn_cells(folder / "changed", themes.DARK.name, theme, keys)
    started = await drawn_cells(folder / "started", theme, theme, keys)
    assert [y for y, (one, other) in enumerate(zip(changed, started, strict=True)) if one != other] == []
