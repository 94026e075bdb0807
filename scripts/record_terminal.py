"""Record a session in a real terminal, on the real default model, as an asciinema file (version 2).

Run from the repository: python -m scripts.record_terminal. It replaces assets/terminal/session.cast; play it with
`asciinema play`. Format: https://docs.asciinema.org/manual/asciicast/v2/
"""

from __future__ import annotations

import codecs
import json
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from scripts.record_walk import ENTER, ESC, FOLDER, QUIT
from specchat.app.ui.first_prompts import FIRST_PROMPTS
from specchat.engine import models_folder
from tests.terminal import Terminal

SIZE = (120, 36)
DETAILS, WATCH, LEFT = "\x0c", "\x07", "\x1b[D"
NOT_SHOWN = re.compile(r"\x1b\[(\?(2026|2048)\$p|\?(100[0-6]|1015|2004)[hl]|[<=>?]\d*u)")
"""Queries, and modes of mouse and keyboard: a terminal that plays the recording would send input to the shell."""


class RecordedTerminal(Terminal):
    """A terminal that notes when the program writes what."""

    def __init__(self, *command: object, **options: Any) -> None:
        super().__init__(*command, **options)
        self.output: list[tuple[float, str]] = []
        """Seconds since the start, and text without `NOT_SHOWN`."""
        self._began = time.monotonic()
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def read(self, seconds: float) -> bytes:
        """Bytes that the program wrote, as `Terminal.read` returns them; they are noted."""
        written = super().read(seconds)
        if text := NOT_SHOWN.sub("", self._decoder.decode(written)):
            self.output.append((time.monotonic() - self._began, text))
        return written

    def watch(self, seconds: float) -> None:
        """Let a viewer look at the screen."""
        end = time.monotonic() + seconds
        self.wait(lambda _: time.monotonic() > end, 2 * seconds, "end of a pause")

    def press(self, *keys: str, pause_s: float) -> None:
        """Press keys one after the other, with a pause after each."""
        for key in keys:
            self.type(key)
            self.watch(pause_s)


def session(terminal: RecordedTerminal) -> None:
    """Ask two prompts, one in each view; look at the details of a reply."""
    terminal.wait_for("ready: ask anything")
    terminal.watch(3)
    terminal.press(*FIRST_PROMPTS[0].text, pause_s=0.04)
    terminal.type(ENTER)
    terminal.wait_for("tok/s ·")
    terminal.watch(3)
    terminal.press(DETAILS, pause_s=2)
    terminal.press(*[LEFT] * 3, pause_s=1.5)
    terminal.press(ESC, WATCH, pause_s=2)
    terminal.press(*FIRST_PROMPTS[1].text, pause_s=0.04)
    terminal.type(ENTER)
    terminal.wait(lambda screen: screen.words.count("tok/s ·") == 2, 60, "second reply")
    terminal.watch(4)
    terminal.leave(QUIT)


def main() -> None:
    """Record, and write the file."""
    columns, rows = SIZE
    with tempfile.TemporaryDirectory() as home:
        (Path(home) / "models").symlink_to(models_folder())
        program = (sys.executable, "-m", "specchat")
        with RecordedTerminal(*program, columns=columns, rows=rows, SPECCHAT_HOME=home) as terminal:
            session(terminal)
    header = {"version": 2, "width": columns, "height": rows, "title": "specchat", "env": {"TERM": "xterm-256color"}}
    lines = [header, *([round(at, 3), "o", text] for at, text in terminal.output)]
    written = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    (FOLDER / "session.cast").write_text(written, encoding="utf-8")


if __name__ == "__main__":
    main()
