"""Keys changed in the settings, vim keys, jumping to a message, the list of active keys, theme files."""

from pathlib import Path

from textual.widgets import Static

from specchat.app.settings.settings import Settings
from specchat.app.settings.settings_file import load_settings, save_settings
from specchat.app.ui.screens.dialogs import JumpScreen
from specchat.app.ui.screens.help import HelpScreen, KeysScreen
from specchat.app.ui.screens.lists import SearchScreen
from specchat.app.ui.widgets.chat_list import ChatList
from specchat.app.ui.widgets.key_bar import KeyBar
from tests.app.stage import FOLLOW_UP, Stage, lines_of
from tests.app.views import WIDE, screen_of

KEYS = """
theme = "specchat-dark"

[keys]
"chat.search" = "f6"
chat.details = ["ctrl+x", "i"]
"chat.stop" = "ctrl+w"
"composer.send" = "alt+s"
"chat.nwe" = "f3"
"chat.watch" = "f8"
"chats.pin" = "hyperspace"
"chats.delete" = 3
"""


def with_files(folder: Path, keys: str = "", **themes: str) -> Stage:
    stage = Stage(folder, file=folder / "settings.toml")
    (folder / "settings.toml").write_text(keys)
    (folder / "themes").mkdir()
    for name, text in themes.items():
        (folder / "themes" / f"{name}.toml").write_text(text)
    return stage


def footer(stage: Stage) -> dict[str, str]:
    keys = stage.app.screen.query_one(KeyBar).keys
    return {key.description: key.name for key in keys}


async def test_changed_keys_work_and_are_shown_and_wrong_ones_are_named(tmp_path: Path) -> None:
    stage = with_files(tmp_path, KEYS)
    async with stage.started(WIDE) as pilot:
        for part in (
            "'chat.nwe' (chat.new?)",
            "chat.watch cannot have the key f8, which chat.copy has",
            "'hyperspace'",
            "chats.delete has the key 3",
        ):
            assert part in " ".join(stage.said)
        await stage.press(pilot, *"hello", "enter", *"you", "alt+s")
        await stage.give(pilot, 20)
        assert footer(stage)["details"] == "^x"
        assert screen_of(stage).conversation.prompts[0].text == "hello\nyou"
        assert screen_of(stage).conversation.running
        await stage.press(pilot, "escape")
        assert screen_of(stage).conversation.running
        await stage.press(pilot, "ctrl+x")
        assert screen_of(stage).has_class("-inspect")
        await stage.press(pilot, "escape")
        assert not screen_of(stage).has_class("-inspect")
        await stage.press(pilot, "ctrl+w")
        await stage.give(pilot)
        assert not screen_of(stage).conversation.running
        assert not isinstance(await stage.press(pilot, "ctrl+k"), SearchScreen)
        assert isinstance(await stage.press(pilot, "f6"), SearchScreen)
        assert isinstance(await stage.press(pilot, "escape", "f1"), HelpScreen)
        assert "f6" in text_of(stage)


def text_of(stage: Stage) -> str:
    with stage.app.console.capture() as captured:
        stage.app.console.print(stage.app.screen.query_one("#help-keys", Static).content, width=120)
    return captured.get()


def test_the_keys_stay_when_a_setting_is_stored(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(KEYS)
    assert load_settings(path) == (Settings(theme="specchat-dark"), None)
    save_settings(path, Settings(temperature=0.5), ["temperature"])
    assert load_settings(path) == (Settings(theme="specchat-dark", temperature=0.5), None)
    assert '"chat.search" = "f6"' in path.read_text()


async def test_the_keys_of_what_has_the_focus(stage: Stage) -> None:
    stage.chats("one", "two")
    async with stage.started(WIDE) as pilot:
        assert isinstance(await stage.press(pilot, "question_mark"), KeysScreen)
        assert "composer.send" in text_of(stage)
        assert "chats.rename" not in text_of(stage)
        await stage.press(pilot, "escape", "ctrl+b", "question_mark")
        assert "chats.rename" in text_of(stage)
        assert "composer.send" not in text_of(stage)


async def test_keys_of_vim_move_where_nothing_is_typed(stage: Stage) -> None:
    stage.chats("one", "two", "three")
    async with stage.started((80, 14)) as pilot:
        assert await stage.typed(pilot, *"jkgG") == "jkgG"
        places = []
        for keys in (("ctrl+b", "j"), ("k",), ("G",), ("g",)):
            await stage.press(pilot, *keys)
            places.append(screen_of(stage).query_one(ChatList).highlighted)
        assert places == [1, 0, 2, 0]


async def test_a_letter_leads_to_a_message(stage: Stage) -> None:
    async with stage.started((100, 36), events=None) as pilot:
        await stage.answer(pilot, 12, text=FOLLOW_UP)
        assert isinstance(await stage.press(pilot, "ctrl+right_square_bracket"), JumpScreen)
        transcript = stage.app.chat_screen.transcript
        rendered = [transcript.render_line(y).text for y in range(transcript.size.height)]
        lettered = [line for line in rendered if line[:3].strip().isalpha() and line[1] in "asd"]
        assert [line[1] for line in lettered] == ["a", "s", "d"][: len(lettered)]
        wanted = next(line for line in lettered if FOLLOW_UP[:20] in line)
        assert not isinstance(await stage.press(pilot, wanted[1]), JumpScreen)
        assert not any(line[:3].strip() in ("a", "s", "d") for line in lines_of(stage))
        assert not isinstance(await stage.press(pilot, "apostrophe"), JumpScreen)
        transcript.focus()
        assert not isinstance(await stage.press(pilot, "alt+j", "escape"), JumpScreen)
