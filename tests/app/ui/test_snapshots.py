"""What the app looks like, from recorded traces: every state, at the sizes where it differs."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot

from specchat.app.settings.settings import Settings
from specchat.app.storage.store import Store
from specchat.engine import Admitted, Finished, Round, message_parts, to_json
from tests.app.recorded import LOADING, trace
from tests.app.stage import FOLLOW_UP, QUESTION, Stage, run
from tests.app.views import MEDIUM, NARROW, WIDE, Replay, answered

Compare = Callable[..., bool]
CHATS = ("Regex for dates", "Sort a list in place", "日本語の挨拶")


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """The app in the chat view, with three older chats."""
    stage = Stage(tmp_path, view="chat")
    stage.chats(*CHATS)
    return stage


async def loading(stage: Stage, pilot: Pilot[None]) -> None:
    await stage.settle(pilot)
    stage.engine.tell(LOADING)
    await stage.settle(pilot)


async def queued(stage: Stage, pilot: Pilot[None]) -> None:
    await loading(stage, pilot)
    await stage.send(pilot)


async def mid_round(stage: Stage, pilot: Pilot[None]) -> None:
    await answered(stage, pilot)


async def finished(stage: Stage, pilot: Pilot[None]) -> None:
    await answered(stage, pilot, None)
    await stage.answer(pilot, text=FOLLOW_UP)


async def stopped(stage: Stage, pilot: Pilot[None]) -> None:
    await mid_round(stage, pilot)
    await stage.press(pilot, "escape")


async def failed(stage: Stage, pilot: Pilot[None]) -> None:
    await mid_round(stage, pilot)
    stage.engine.fail("the device ran out of memory: choose a smaller context")
    await stage.settle(pilot)


async def died(stage: Stage, pilot: Pilot[None]) -> None:
    await stage.settle(pilot)
    stage.engine.die("smollm2-360m is not a known preset and no such folder exists: specchat models list shows presets")
    await stage.settle(pilot)


STATES = [loading, queued, Stage.ready, mid_round, finished, stopped, failed, died]
NARROW_STATES = [Stage.ready, mid_round, finished]


@pytest.mark.parametrize(
    ("step", "size"), [(step, WIDE) for step in STATES] + [(step, NARROW) for step in NARROW_STATES],
    ids=[f"{step.__name__}-wide" for step in STATES] + [f"{step.__name__}-narrow" for step in NARROW_STATES],
)  # fmt: skip
def test_state(
    snap_compare: Compare, stage: Stage, step: Callable[..., Awaitable[None]], size: tuple[int, int]
) -> None:
    if step is mid_round:  # as the first reply is: with all instruments
        stage.settings = Settings(view="watch")
    assert snap_compare(stage.app, terminal_size=size, run_before=run(stage, step))


def test_no_color(snap_compare: Compare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    stage = Stage(tmp_path)
    stage.chats(*CHATS)
    assert snap_compare(stage.app, terminal_size=WIDE, run_before=run(stage, mid_round))


KEYS = {
    "markdown-wide": (WIDE, finished, "ctrl+t"), "help-wide": (WIDE, mid_round, "f1"),
    "help-narrow": (NARROW, mid_round, "f1"), "chats_focused-wide": (WIDE, finished, "ctrl+b"),
    "chats_focused-narrow": (NARROW, finished, "ctrl+b"), "watched-wide": (WIDE, finished, "ctrl+g"),
    "watched-narrow": (NARROW, finished, "ctrl+g"), "rename-wide": (WIDE, finished, "ctrl+b", "r"),
}  # fmt: skip


@pytest.mark.parametrize("name", KEYS)
def test_key(snap_compare: Compare, stage: Stage, name: str) -> None:
    size, step, *keys = KEYS[name]
    assert snap_compare(stage.app, terminal_size=size, run_before=run(stage, step, *keys))


@pytest.mark.parametrize("size", [(40, 10), MEDIUM], ids=["40x10", "medium"])
def test_small(snap_compare: Compare, stage: Stage, size: tuple[int, int]) -> None:
    assert snap_compare(stage.app, terminal_size=size, run_before=run(stage, mid_round))


def test_reopened(snap_compare: Compare, stage: Stage) -> None:
    """A reply that was being written when the program was killed, and hostile text in an older one."""
    chat = stage.store.create_chat(QUESTION)
    stage.store.add_message(chat.id, "user", "Print a red \x1b[31mword\x1b[0m.")
    hostile = stage.store.add_message(chat.id, "assistant", "")
    stage.store.append_rounds(hostile, message_parts("\x1b[31mred\x1b[0m \x07 and \u202eback"), [])
    stage.store.finish_message(hostile, "eos")
    stage.store.add_message(chat.id, "user", QUESTION)
    reply = stage.store.add_message(chat.id, "assistant", "")
    records = [r for r in trace() if isinstance(r, Admitted | Round | Finished)][:60]
    text = "".join(record.text for record in records if isinstance(record, Round))
    stage.store.append_rounds(reply, message_parts(text), [to_json(record) for record in records])

    async def open_newest(stage: Stage, pilot: Pilot[None]) -> None:
        await stage.ready(pilot)
        await stage.press(pilot, "ctrl+b", "home", "enter")

    assert snap_compare(stage.app, terminal_size=WIDE, run_before=run(stage, open_newest))
    Store(stage.database).close()


@pytest.mark.parametrize("name", ["code", "usual"])
def test_replay(snap_compare: Compare, name: str) -> None:
    replay = Replay(name)
    assert snap_compare(replay.app, terminal_size=WIDE, run_before=replay.run(0.8, "space", "plus"))
