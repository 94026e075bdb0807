"""Learning from stored chats: the text that is given, the process that is paused, kept, undone; and `/learn`."""

import errno
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from specchat.app.chat.learning import BATTERY, BUSY, Learning
from specchat.app.chat.stored_conversation import write_chats
from specchat.app.paths import heads_folder
from specchat.app.storage.store import Store
from tests.app.stage import Stage
from tests.app.storage.helpers import add_turn
from tests.waiting import PATIENCE_S, until

TARGET = "smollm2-135m"


def stand_in(after: float, seconds: float = 0.0) -> Callable[[str, str, Path], Sequence[str]]:
    """A command that trains nothing: it waits, writes a head and says what it reaches."""

    def command(_target: str, _head: str, folder: Path) -> Sequence[str]:
        program = (
            f"import json, pathlib, time; f = pathlib.Path({str(folder)!r}); (f / '.work').mkdir(parents=True);"
            f"(f / '.work' / 'text').touch(); (f / 'head.json').write_text({str(after)!r}); "
            f"print(json.dumps(dict(text='reading')), flush=True); time.sleep({seconds});"
            f"print(json.dumps(dict(before=2.0, after={after})))"
        )
        return [sys.executable, "-c", program]

    return command


def started(after: float, seconds: float = 0.0, **given: Any) -> Learning:
    """Learning of which a process has begun that trains nothing."""
    learning = Learning(stand_in(after, seconds), **given)
    learning.start(TARGET)
    return learning


def process_of() -> psutil.Process:
    """The process of what takes long to learn."""
    return next(child for child in psutil.Process().children() if "time.sleep(60" in " ".join(child.cmdline()))


def ended(learning: Learning) -> str:
    return until(lambda: learning.update(busy=False), lambda: learning.state)


def heads() -> list[str]:
    return sorted(file.read_text() for file in heads_folder().glob("*/head.json"))


def nothing_is_left() -> bool:
    return not list(heads_folder().with_name("learning").glob("*"))


def test_a_better_head_is_kept_and_undone_step_by_step() -> None:
    for after in (2.3, 2.5):
        learning = started(after)
        assert f"τ 2.00 → {after:.2f}" in ended(learning)
        assert heads() == [str(after)]
        assert nothing_is_left()
    assert not list(heads_folder().glob("*/.work")), "the text"
    assert learning.undo(TARGET)
    assert heads() == ["2.3"]
    assert learning.undo(TARGET)
    assert not heads()
    assert not learning.undo(TARGET)
    assert "stays as it was" in ended(started(1.9))  # no better than before
    assert not heads()
    assert nothing_is_left()
    learning = Learning(lambda *_: [sys.executable, "-c", "import sys; sys.exit('specchat: the disk is full')"])
    learning.start(TARGET)
    assert ended(learning) == "nothing was learnt: the disk is full"


def test_a_killed_process_leaves_the_head_and_no_text() -> None:
    learning = started(2.3)
    ended(learning)
    learning = started(2.5, seconds=60)
    until(lambda: "reading" in learning.state)
    process_of().kill()
    assert ended(learning) == "nothing was learnt: its process was ended: start again with /learn"
    assert heads() == ["2.3"]
    assert nothing_is_left()


def test_a_head_that_cannot_be_kept_leaves_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    for after in (2.3, 2.5):
        learning = started(after)
        ended(learning)
    rename = Path.rename

    def full(path: Path, goal: Path) -> Path:
        if "learning" in path.parts:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return rename(path, goal)

    monkeypatch.setattr(Path, "rename", full)
    learning = started(2.7)
    assert ended(learning) == "what was learnt cannot be kept: No space left on device"
    assert heads() == ["2.5"]
    assert nothing_is_left()


def test_text_of_a_killed_app_is_deleted_by_the_next() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(PATIENCE_S)
    folders = [heads_folder().with_name("learning") / str(number) for number in (gone.pid, os.getpid())]
    for folder in folders:
        (folder / ".work").mkdir(parents=True)
    Learning.tidy()
    assert [folder.exists() for folder in folders] == [False, True]


def test_the_process_is_suspended_at_once_and_goes_on_when_idle_and_on_mains() -> None:
    clock, mains = [0.0], [True]
    learning = started(2.1, seconds=60, mains=lambda: mains[0], now=lambda: clock[0])
    process = process_of()

    def becomes(stopped: bool, *, busy: bool = False) -> bool:
        learning.update(busy)
        return until(lambda: (process.status() == psutil.STATUS_STOPPED) is stopped)

    assert becomes(stopped=True, busy=True)
    assert BUSY in learning.state
    clock[0] += 1
    learning.update(busy=False)
    assert BUSY in learning.state, "it has not been idle for long"
    clock[0] += 10
    assert becomes(stopped=False)
    mains[0] = False
    assert becomes(stopped=True)
    assert BATTERY in learning.state
    assert process.nice() == 19
    learning.stop()
    assert not process.is_running()
    assert nothing_is_left()


def test_only_ended_replies_of_the_model_in_chats_that_are_there(tmp_path: Path) -> None:
    with Store(tmp_path / "chats.db") as store:
        for number, (model, deleted) in enumerate(((TARGET, False), ("other", False), (TARGET, True))):
            chat = store.create_chat(f"{number}")
            reply = add_turn(store, chat.id, f"question {number}", f"answer {number}", model=model)
            add_turn(store, chat.id, "and?", "half", parent=reply, model=model, reason=None)
            if deleted:
                store.change_chat(chat.id, deleted=True)
        file = tmp_path / "text" / "chats.jsonl"
        write_chats(store, TARGET, file)
    said = [[each["content"] for each in json.loads(line)["messages"]] for line in file.read_text().splitlines()]
    assert said == [["question 0", "answer 0"]]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


async def test_the_command_starts_reports_stops_and_undoes(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    async with stage.started() as pilot:
        learn = stage.app.actions.learn
        learn.learning = Learning(stand_in(2.4, seconds=60))
        await stage.send(pilot, "/learn")
        await stage.press(pilot, "2")  # cancel
        assert not learn.learning.running
        await stage.send(pilot, "/learn")
        await stage.press(pilot, "1")
        assert "learning from your chats" in stage.said[-1]
        for line, words in (
            ("/learn", "learning: "),
            ("/learn stop", "learning stopped"),
            ("/learn stop", "nothing is learning"),
            ("/learn undo", "nothing has been learnt"),
            ("/learn now", "takes stop or undo"),
        ):
            stage.composer.load_text("")
            await stage.send(pilot, line)
            assert words in stage.said[-1], (line, stage.said)
        learn.learning = Learning(stand_in(2.4))
        stage.composer.load_text("")
        await stage.send(pilot, "/learn")
        await stage.press(pilot, "1")
        await stage.comes(pilot, lambda: "τ 2.00 → 2.40" in stage.said[-1])
        assert heads() == ["2.4"]
