"""Walk through the app in a real terminal, on the real default model, and keep what is on screen as pictures.

Run from the repository: python -m scripts.record_walk. It replaces the files in assets/terminal.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from rich.text import Text
from pyte.screens import Char

from tests.terminal import Terminal

FOLDER = Path(__file__).parent.parent / "assets" / "terminal"
ENTER, ESC, CTRL_E, CTRL_K, CTRL_Y, F6 = "\r", "\x1b", "\x05", "\x0b", "\x19", "\x1b[17~"
COLOURS = TerminalTheme((18, 18, 18), (224, 224, 224), [(0, 0, 0)] * 8)
"""Of cells that name none; the app's name all but these."""
QUESTION = "Write a Python class Stack with push, pop and peek."


def picture(terminal: Terminal, name: str) -> None:
    """Save the screen as an SVG picture."""
    terminal.wait_quiet(0.3)
    rows = terminal.cells
    console = Console(record=True, width=len(rows[0]), file=open("/dev/null", "w"), force_terminal=True)  # noqa: SIM115
    for row in rows:
        console.print(Text.assemble(*((cell.data, _style(cell)) for cell in row)), no_wrap=True, crop=True)
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
    """Ask, edit the prompt, fork at a token, search, compare; a picture of each."""
    size = f"{columns}x{rows}"
    with Terminal(sys.executable, "-m", "specchat", columns=columns, rows=rows, SPECCHAT_HOME=str(home)) as terminal:
        terminal.wait_for("ready")
        terminal.type(QUESTION + ENTER)
        terminal.wait_for("tok/s")
        picture(terminal, f"chat-{size}")
