"""In every bundled theme text can be read and signs can be seen, and frames without the focus are quiet."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.segment import Segment
from textual.color import Color
from textual.screen import ModalScreen
from textual.theme import BUILTIN_THEMES

from specchat.app.chat import web_page
from specchat.app.ui import themes
from tests.app.stage import Stage

TEXT, SIGN = 4.5, 3.0
THEMES = [theme.name for theme in (themes.DARK, themes.LIGHT, *BUILTIN_THEMES.values()) if not theme.ansi]
SCREENS = {
    "watch": (), "markdown": ("ctrl+t",), "chats": ("ctrl+b",), "inspector": ("f6",), "help": ("f1",),
    "figures": ("f6", "d"), "theory": ("f6", "h"), "controls": ("f9",), "drafts": ("f6", "c"),
    "models": ("ctrl+backslash",), "messages": ("ctrl+e",), "context": ("alt+c",), "cache": ("alt+k",),
    "search": ("ctrl+k", "l"), "slash": ("/",), "palette": ("ctrl+p",), "keys": ("f6", "question_mark"),
    "lines": ("f6", "l"), "timeline": ("f6", "t"), "rename": ("ctrl+b", "r"), "side": ("ctrl+y",),
}  # fmt: skip
QUICK = ("watch", "palette")


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


def test_exported_pages_have_the_colours_of_the_app() -> None:
    styles = (Path(web_page.__file__).parent / "page.css").read_text()
    for fates in (themes.FATES_ON_DARK, themes.FATES_ON_LIGHT):
        assert all(f"--{name.removeprefix('fate-')}: {tone};" in styles for name, tone in fates.items())
    assert "opacity" not in styles


@pytest.mark.parametrize("name", THEMES)
def test_frames_without_the_focus_are_quieter_than_those_with_it(name: str) -> None:
    theme = next(theme for theme in (themes.DARK, themes.LIGHT, *BUILTIN_THEMES.values()) if theme.name == name)
    colours = themes.theme_colours(theme, theme.to_color_system().generate())
    background = Color.parse(colours["background"])
    quiet, focused = (themes.contrast(Color.parse(colours[part]), background) for part in ("border", "primary"))
    assert quiet < 1.8
    assert focused >= SIGN


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in SCREENS]
)
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
