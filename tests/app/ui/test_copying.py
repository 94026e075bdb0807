"""Copying replies, code and selections to the clipboard and to a file."""

from typing import Any

import pytest
from textual.pilot import Pilot

from specchat.app.chat.conversation import Conversation, Prompt
from specchat.app.paths import state_folder
from specchat.app.ui.screens.dialogs import ChoiceScreen
from specchat.engine import Fate, Finished, FinishReason, Round
from tests.app.recorded import replied
from tests.app.stage import WIDE, Stage, place_of
from tests.app.ui.test_transcript import round_of

pytestmark = pytest.mark.slow

CODE = "Two ways:\n\n```python\nprint(1)\n```\n\nor\n\n```sh\necho 1\n```\n"


def say(stage: Stage, *rounds: Round, prompt: str = "?") -> None:
    reply = replied([*rounds, Finished("r", FinishReason.EOS, "", "", 1.0)])
    stage.app.screen.show(Conversation(path=[Prompt(prompt), reply]))  # type: ignore[attr-defined]


def plain(text: str, number: int = 0) -> Round:
    return round_of(accepted=0, tested=0, last=text, fate=Fate.PLAIN, number=number)


async def drag(stage: Stage, pilot: Pilot[None], start: tuple[int, int], end: tuple[int, int]) -> None:
    left, top = stage.app.chat_screen.transcript.content_region.offset
    await pilot.mouse_down(offset=(left + start[0], top + start[1]))
    await pilot.hover(offset=(left + end[0], top + end[1]))
    await pilot.mouse_up(offset=(left + end[0], top + end[1]))
    await stage.settle(pilot)


async def test_a_selection_leaves_out_what_was_rejected(stage: Stage) -> None:
    async with stage.started(WIDE) as pilot:
        say(stage, round_of(" yes", " no", " never", accepted=1, tested=2, last=" indeed", fate=Fate.CORRECTION))
        await stage.settle(pilot)
        x, y = place_of(stage, "yes")
        await drag(stage, pilot, (x, y), (60, y))
        await stage.press(pilot, "ctrl+c")
        assert stage.app.clipboard == "yes indeed"
        assert (state_folder() / "clipboard.txt").read_text() == "yes indeed"
        assert any("^c copies" in notice for notice in stage.said)


async def test_a_selection_has_the_lines_of_the_text_not_of_the_screen(stage: Stage) -> None:
    words = " ".join(f"word{number}" for number in range(40))
    text = f"{words} {'antidisestablishmentarianism' * 5} {'東京は日本の首都です' * 6}\n\n  and  more\nsecond line"
    async with stage.started((80, 24)) as pilot:
        say(stage, plain(text))
        await stage.settle(pilot)
        x, y = place_of(stage, "word0")
        _, last = place_of(stage, "second line")
        assert last > y + 2
        await drag(stage, pilot, (x, y), (70, last))
        assert stage.app.screen.get_selected_text() == text


@pytest.mark.parametrize(("keys", "copied"), [("1", CODE.strip()), ("2", "print(1)"), ("3", "echo 1"), ("4", "# ?")])
async def test_the_key_asks_what_to_copy(stage: Stage, keys: str, copied: str) -> None:
    async with stage.started(WIDE) as pilot:
        say(stage, plain(CODE))
        assert isinstance(await stage.press(pilot, "f8"), ChoiceScreen)
        await stage.press(pilot, keys)
        assert stage.app.clipboard.startswith(copied)
        if keys != "4":
            assert stage.app.clipboard == copied


async def test_commands_copy(stage: Stage) -> None:
    async with stage.started(WIDE) as pilot:
        await stage.send(pilot, "/copy")
        assert any("no reply to copy yet" in notice for notice in stage.said)
        say(stage, plain("words alone"))
        await stage.send(pilot, "/copy code")
        assert any("no code block" in notice for notice in stage.said)
        await stage.send(pilot, "/copy")
        assert stage.app.clipboard == "words alone"
        say(stage, plain("```\none block\n```"))
        await stage.send(pilot, "/copy code")
        assert stage.app.clipboard == "one block"
        await stage.send(pilot, "/copy all")
        assert any("/copy all is not understood" in notice for notice in stage.said)


def test_looks(snap_compare: Any, stage: Stage) -> None:
    async def before(pilot: Pilot[None]) -> None:
        await stage.ready(pilot)
        say(stage, plain(CODE), prompt="How do I print 1?")
        await stage.press(pilot, "f8")

    assert snap_compare(stage.app, terminal_size=WIDE, run_before=before)
