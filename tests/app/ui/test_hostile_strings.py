"""Strings of users, files, models and servers are not read as markup and do not reach the terminal, on any screen."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from specchat.app.sanitize import escape_controls
from specchat.app.ui.action_table import ACTIONS, CHAT, COPIES
from specchat.app.ui.actions import models as model_actions
from specchat.app.ui.screens import models as models_screen
from specchat.engine import Died, Finished, Ready, Record, Round
from specchat.engine.events import Loading, Notice
from specchat.engine.models import KnownModel
from tests.app.choosing import Choosing, shown
from tests.app.quiet import all_done
from tests.app.recorded import trace
from tests.app.side_stage import SideStage
from tests.app.stage import Stage, screen_strips
from tests.app.storage.helpers import add_turn
from tests.app.views import Replay

ENDS_A_TAG, OPENS = "[/b] x", "[red]x[@click=app.quit]y[link=x [x \\[ [/"
STEERS = "\x1b]0;t\x07\x9b31m\x9d0;t\x9c\u202eabc\u2066\u200b\r\x08\x7f\ud800 \u2028two\nlines\x0b"
ALL = OPENS + STEERS + ENDS_A_TAG
SLOW = {"a closing tag": ENDS_A_TAG, "tags": OPENS, "sequences": STEERS, "long": ALL + "x[/b] " * 2000}
STRINGS = [pytest.param(ALL, id="all"), *(pytest.param(SLOW[name], id=name, marks=pytest.mark.slow) for name in SLOW)]
_STYLE = re.compile(r"\x1b\[[\d;]*m|\x1b\]8;[^\x1b]*\x1b\\")
LEFT_OUT = {"quit", "editor", "learn", "new", "unload", "fork", "copy-one", "side-by-side"}
"""They end the app, run a program, or show nothing of their own."""


def check(stage: Any) -> None:
    """Check what Textual would write to the terminal for the topmost screen."""
    app = stage.app
    assert app._exception is None
    lines = app.screen._compositor.render_update(full=True).strips
    for line in lines:
        written = _STYLE.sub("", "".join(strip.render(app.console) for strip in line))
        assert escape_controls(written) == written


def hostile(records: Sequence[Record], text: str) -> list[Record]:
    """The records of an engine whose names, notices and tokens are this text."""
    changed: list[Record] = []
    for each in records:
        if isinstance(each, Ready):
            changed += [replace(each, target=text, drafters=(text, *each.drafters), device_name=text)]
        elif isinstance(each, Round):
            changed.append(replace(each, drafter=text, last_piece=text))
        elif isinstance(each, Finished):
            changed.append(replace(each, message=text))
        else:
            changed.append(each)
    return changed


@pytest.fixture(params=STRINGS)
def text(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.slow
async def test_every_action_of_the_chat(tmp_path: Path, text: str) -> None:
    stage = Stage(tmp_path, records=hostile(trace("chat"), text))
    chat = stage.store.create_chat(text, system=text).id
    add_turn(stage.store, chat, text, text)
    stage.chats(text, f"#tag {text}")
    async with stage.started(events=30, text=f"{text} question") as pilot:
        check(stage)
        await stage.give(pilot)
        stage.engine.tell(Notice(None, text, 0.0), Loading("target", text, 0.5, 1.0))
        await stage.settle(pilot)
        check(stage)
        for name, action in ACTIONS.items():
            if name in LEFT_OUT or action.needs or action.place not in ("", CHAT) or not action.about:
                continue
            await stage.app.run_action(f"app.run('{name}')")
            await stage.settle(pilot)
            check(stage)
            await _leave(stage, pilot)
        for command in ("system", "template", "preset", "theme", "model", "search", "tag", "attach", "draft", *COPIES):
            await stage.send(pilot, f"/{command} {text}")
            check(stage)
            await _leave(stage, pilot)
        stage.engine.tell(Died(text, 0.0))
        await stage.settle(pilot)
        check(stage)


async def _leave(stage: Stage, pilot: Pilot[None]) -> None:
    for _ in range(3):
        if len(stage.app.screen_stack) == 1:
            return
        await pilot.press("escape")
        await all_done(stage.app)
    assert len(stage.app.screen_stack) == 1


async def test_the_list_of_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    stage = Choosing(tmp_path)
    known = [
        KnownModel(text, tmp_path, 1, 1, note=text, licence=text, draft=text),
        KnownModel(text + "2", None, None, 9),
    ]

    async with stage.app.run_test(size=(110, 34)) as pilot:
        await shown(stage, pilot, monkeypatch)
        monkeypatch.setattr(models_screen, "misfits", lambda _, models: {model.spec: text for model in models})
        await _leave(stage, pilot)
        monkeypatch.setattr(model_actions, "known_models", lambda *_: known)
        await stage.press(pilot, "ctrl+backslash")
        check(stage)
        await stage.press(pilot, "down", "d", "enter")
        check(stage)
        await _leave(stage, pilot)
        stage.app.actions.records.fail(text)
        await stage.settle(pilot)
        check(stage)


async def test_a_name_that_is_typed_is_shown_as_typed(tmp_path: Path) -> None:
    stage = Stage(tmp_path, file=tmp_path / "settings.toml")
    async with stage.started(size=(110, 34)) as pilot:
        for name in ("[/b]", "[b]", "a[/]", "[link=x", "x [red"):
            await stage.send(pilot, "/system")
            field = stage.app.screen.query_one(Input)
            field.focus()
            field.value = name
            await stage.press(pilot, "enter")
            lines = [strip.text for strip in screen_strips(stage.app)]
            assert any(f"{name!r} cannot name" in line for line in lines)
            await _leave(stage, pilot)


async def test_side_by_side(tmp_path: Path, text: str) -> None:
    stage = SideStage(tmp_path, server=text, change_right=lambda records: hostile(records, text))
    async with stage.started() as pilot:
        check(stage)
        await stage.answer(pilot, text=f"{text} question")
        check(stage)
        stage.right.tell(Died(text, 0.0))
        await stage.settle(pilot)
        check(stage)


async def test_a_replay(text: str) -> None:
    replay = Replay("detail")
    replay.player.name = text
    async with replay.started(0.5):
        check(replay)
