"""Walk through the app in a real terminal, on the real default model, and keep what is on screen as pictures.

Run from the repository: python -m scripts.record_walk. It replaces the files in assets/terminal.
"""

from __future__ import annotations

import sys
import tempfile
from io import StringIO
from itertools import groupby
from pathlib import Path

from pyte.screens import Char
from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from specchat.engine import models_folder
from tests.terminal import Terminal

FOLDER = Path(__file__).parent.parent / "assets" / "terminal"
ENTER, ESC, QUIT, F6 = "\r", "\x1b", "\x11", "\x1b[17~"
MESSAGES, SEARCH, MODELS = "\x05", "\x0b", "\x1c"  # ctrl with e, k, backslash
COLOURS = TerminalTheme((18, 18, 18), (224, 224, 224), [(0, 0, 0)] * 8)
"""Colours of cells that name none."""
QUESTION = "Write a Python class Stack with push, pop and peek."


def picture(terminal: Terminal, name: str) -> None:
    """Save the screen as an SVG picture."""
    terminal.wait_quiet(0.3)
    rows = terminal.cells
    console = Console(record=True, width=len(rows[0]), file=StringIO(), force_terminal=True)
    for row in rows:
        runs = groupby(row, key=_style)  # one piece of text for each run of cells that look the same
        console.print(Text.assemble(*(("".join(cell.data for cell in run), style) for style, run in runs)))
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{name}.svg").write_text(console.export_svg(title="specchat", theme=COLOURS), encoding="utf-8")
    print(f"{name}.svg")


def _style(cell: Char) -> Style:
    return Style(
        color=_colour(cell.fg),
        bgcolor=_colour(cell.bg),
        bold=cell.bold,
        underline=cell.underscore,
        strike=cell.strikethrough,
        italic=cell.italics,
        reverse=cell.reverse,
    )


def _colour(name: str) -> Color | None:
    return None if name == "default" else Color.parse(f"#{name}")


def walk(home: Path, columns: int, rows: int) -> None:
    """Ask, inspect a token, continue from another one, edit the prompt, search, look at the models; save pictures."""
    size = f"{columns}x{rows}"
    program = (sys.executable, "-m", "specchat", "--seed", 1, "--temperature", 0.7, "--max-tokens", 160)
    with Terminal(*program, columns=columns, rows=rows, SPECCHAT_HOME=str(home)) as terminal:
        terminal.wait_for("Ask anything")
        terminal.type(QUESTION + ENTER)
        terminal.wait_for("tok/s ·", 120)
        picture(terminal, f"chat-{size}")
        terminal.type(F6)
        terminal.wait_for("computed afterwards")
        picture(terminal, f"inspector-{size}")
        terminal.type(ENTER)
        terminal.wait_for("fork at a token")
        picture(terminal, f"fork-{size}")
        terminal.type("1")
        terminal.wait_quiet(1.0, 120)
        terminal.type(ESC + MESSAGES)
        terminal.wait_for("messages")
        picture(terminal, f"messages-{size}")
        terminal.type(ESC)
        terminal.wait_quiet()
        terminal.type(SEARCH)
        terminal.wait_for("search all chats")
        terminal.type("stack pop")
        terminal.wait_for("# Write")
        picture(terminal, f"search-{size}")
        terminal.type(ESC)
        terminal.wait_quiet()
        terminal.type(MODELS)
        terminal.wait_for("enter loads")
        picture(terminal, f"models-{size}")
        terminal.type(ESC)
        terminal.leave(QUIT)


def main() -> None:
    """Walk in a wide terminal, then in a small one, with separate chats."""
    for columns, rows in ((140, 40), (80, 24)):
        with tempfile.TemporaryDirectory() as home:
            (Path(home) / "models").symlink_to(models_folder())
            walk(Path(home), columns, rows)


if __name__ == "__main__":
    main()
