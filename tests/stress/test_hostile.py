"""Text that steers a terminal, or hides in it, wherever specchat shows what others wrote: none of it may arrive raw."""

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.interface.running import PROGRAM, QUIT
from specchat.app.storage.store import Store
from specchat.engine import Finished, FinishReason, Message, Request, Round, TraceWriter, message_parts, to_json
from tests.stress.numbered import READY, numbered
from tests.terminal import Terminal

CHATS, DOWN, ENTER, ESCAPE = "\x02", "\x1b[B", "\r", "\x1b"
SEQUENCES = (
    "\x1b]0;OWNED\x07", "\x1b]52;c;T1dORUQ=\x07", "\x1b]8;;http://o.example\x1b\\link\x1b]8;;\x1b\\", "\x1b[6666h",
    "\x1b[31;6666m", "\x1bP+q6666\x1b\\", "\x1b_Gowned\x1b\\", "\x1b^owned\x1b\\", "\x1bXowned\x1b\\", "\x1bc",
   "\x1b(0", "\x9b6666h", "\x9d0;OWNED\x9c", "[/owned]", "[red]", "[@click=app.quit]x[/]", "\\[", "[link=file:///x]l",
)  # fmt: skip
"""Sequences of every kind that a terminal knows; and, at the end, markup that the libraries of the interface know."""
CONTROLS = [chr(code) for code in (*range(0x09), *range(0x0B, 0x20), *range(0x7F, 0xA0))]
HIDDEN = [chr(code) for code in (
    0xAD, 0x034F, 0x061C, 0x115F, 0x1160, 0x17B4, 0x17B5, *range(0x180B, 0x1810), *range(0x200B, 0x2010),
    *range(0x2028, 0x202F), *range(0x2060, 0x2070), 0x3164, 0xFEFF, 0xFFA0, *range(0xFFF9, 0xFFFC),
    *range(0x1BCA0, 0x1BCA4), *range(0x1D173, 0x1D17B), 0xE0001, *range(0xE0020, 0xE0080), *range(0xE0100, 0xE01F0),
)]  # fmt: skip
"""Direction marks, line separators, and everything without a width but combining marks and the variants of emoji."""
PIECES = [f"a{sign}b " for sign in (*SEQUENCES, *CONTROLS, *HIDDEN)]
TITLE = "".join(PIECES[: len(SEQUENCES)]) + "\u202e\u200b\x07\x9b"
FILE_NAME = "n\x1b]0;OWNED\x07\x9b6666h\u202e\u200b\x0e[red]"

_OURS = "\x1b\r\n\t"
_RAW = re.compile("[" + re.escape("".join({*CONTROLS, *HIDDEN} - {*_OURS})) + "]")
_POINTER = re.compile(r"\x1b\]22;[a-z-]*\x07")
"""Textual sets the shape of the mouse pointer."""
_STEERING = re.compile(r"\x1b(?:\](?!8;)|P|_|\^|X|c|b|\(0|\[[0-9;?>]*6666)|o\.example\x1b|\r(?=b )")

pytestmark = pytest.mark.slow


def found_in(written: bytes | bytearray) -> list[str]:
    """What of the hostile text has reached the terminal as it was."""
    text = _POINTER.sub("", written.decode("utf-8", "replace"))
    raw = {f"U+{ord(sign):04X}" for sign in _RAW.findall(text)}
    steering = {match[0] for match in _STEERING.finditer(text)}
    wrong = [f"raw {', '.join(sorted(raw))}"] if raw else []
    wrong += [f"steering {', '.join(map(repr, sorted(steering)))}"] if steering else []
    return [*wrong, *(["traceback"] if "Traceback" in text else [])]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def where(tmp_path: Path) -> Path:
    """The working folder, whose name is hostile too."""
    (tmp_path / FILE_NAME).mkdir()
    return tmp_path / FILE_NAME


def test_a_reply(home: Path, where: Path) -> None:
    """A model that says all of it: while it streams, as Markdown, in the inspector, the steps and the timeline."""
    pieces = where / "pieces.json"
    pieces.write_text(json.dumps(PIECES))
    with _shows_none_raw(_app(home, where, "--pieces", pieces, "--rate", 100, "--rounds", len(PIECES))) as terminal:
        _say(terminal, "go on")
        terminal.wait_for("copy", 60)
        _press(terminal, "\x14", "\x14", "\x1b[17~", *("\x1b[D",) * 15, ESCAPE, "\x0c", ESCAPE, "\x06", "\x06", "\x1bp")
        terminal.type("/export md" + ENTER)
        terminal.wait_for("exported as")
        _press(terminal, *("\x1b[5~",) * 6, *("\x1b[6~",) * 6)


def test_stored_chats_settings_and_notices(home: Path, where: Path) -> None:
    """A database and a settings file from elsewhere, and commands that are refused with what was typed."""
    _fill(home)
    file = home / "config" / "settings.toml"
    file.parent.mkdir(parents=True)
    name = json.dumps(TITLE).replace("\x7f", "\\u007f")
    file.write_text(f"target = {name}\ntheme = {name}\n{name} = 1\n")
    with _shows_none_raw(_app(home, where)) as terminal:
        for command in ("/theme [/red]", "/preset [/x]", "/gamma [/x]"):
            _press(terminal, ESCAPE + "\x15")
            _say(terminal, command)
            terminal.wait_quiet()
        _press(terminal, ESCAPE + "\x15")
        terminal.type(CHATS)
        terminal.wait_for("u undo")
        _press(terminal, DOWN, ENTER, "\x1b[A", CHATS, DOWN, "r", ESCAPE, "d", "u")


def test_a_replay(home: Path, where: Path) -> None:
    """A trace of such a reply, in a file of such a name."""
    with _shows_none_raw(_specchat(home, where, "replay", _trace(where))) as terminal:
        terminal.wait_for("replay")
        terminal.wait_for("✗", 60)
        _press(terminal, "\x1b[17~", *("\x1b[D",) * 20, ESCAPE, "\x0c", "\x06")


@contextmanager
def _shows_none_raw(terminal: Terminal) -> Iterator[Terminal]:
    """The app, which is left at the end; nothing hostile may have reached the terminal as it was."""
    with terminal:
        yield terminal
        assert terminal.leave(QUIT) == 0
    assert found_in(terminal.written) == []


def _app(home: Path, where: Path, *options: object) -> Terminal:
    terminal = Terminal(
        sys.executable, "-m", "tests.stress.numbered", *options, SPECCHAT_HOME=str(home), cwd=where,
        PYTHONPATH=_python_path(),
    )  # fmt: skip
    terminal.wait_for("ready: ask anything")
    return terminal


def _specchat(home: Path, where: Path, *arguments: object) -> Terminal:
    return Terminal(sys.executable, *PROGRAM, *arguments, SPECCHAT_HOME=str(home), cwd=where, PYTHONPATH=_python_path())


def _python_path() -> str:
    """Path of this checkout, for programs in another folder."""
    return ":".join(dict.fromkeys([*(path for path in sys.path if path), str(Path.cwd())]))


def _press(terminal: Terminal, *keys: str) -> None:
    for key in keys:
        terminal.type(key)
        terminal.wait_quiet()


def _say(terminal: Terminal, text: str) -> None:
    _press(terminal, text)
    terminal.type(ENTER)


def _rounds(request_id: str) -> list[Round | Finished]:
    rounds = [numbered(request_id, n, 1, n * 0.01, piece) for n, piece in enumerate(PIECES)]
    end = Finished(request_id, FinishReason.ERROR, TITLE, TITLE, len(PIECES) * 0.01)
    return [*(replace(record, drafter=TITLE) for record in rounds), end]


def _trace(where: Path) -> Path:
    path = where / f"{FILE_NAME}.jsonl"
    with TraceWriter(path) as writer:
        for record in (
            replace(READY, target=TITLE, device_name=TITLE),
            Request("ask", (Message("user", TITLE),)),
            *_rounds("ask"),
        ):
            writer.write(record)
    return path


def _fill(home: Path) -> None:
    """A database whose every text is hostile, as another program may have written it."""
    with Store(home / "data" / "specchat.db") as store:
        for title in (TITLE, "".join(PIECES)):
            chat = store.create_chat(title)
            prompt = store.add_message(chat.id, "user", "".join(PIECES))
            answer = store.add_message(chat.id, "assistant", "", parent=prompt)
            records = _rounds("stored")
            text = "".join(r.tail if isinstance(r, Finished) else r.text for r in records)
            store.append_rounds(answer, message_parts(text), [to_json(record) for record in records])
            store.finish_message(answer, "error")
            store.unsent.keep(chat.id, "".join(PIECES))
        store.unsent.keep(0, "".join(PIECES))
