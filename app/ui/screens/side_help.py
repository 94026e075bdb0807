"""Keys of the side-by-side mode, and how its clocks count."""

from __future__ import annotations

from specchat.app.ui.rendering.side_figures import SIDE_DEFINITIONS
from specchat.app.ui.screens.help import HelpPage, Row

SIDE_KEYS: tuple[Row, ...] = (
    ("enter", "ask both lanes the same"),
    ("esc", "stop both replies, their texts are kept; then leave"),
    ("f3", "run the same prompt again: the summary has the spread of the measured speedup"),
    ("f8", "go on chatting from the left lane"),
    ("f9", "go on chatting from the right lane"),
    ("^b  f2", "on a narrow screen: left, right, summary"),
    ("^r  f4", "rejected drafts of a finished reply: ┊, in place, or hidden; a click on ┊ unfolds one"),
    ("^t  f5", "finished replies as Markdown, or token by token"),
    ("^s", "save the screen as an SVG picture"),
    ("f1  ?", "this help"),
    ("^q", "quit; everything is stored"),
)

SIDE_HELP = HelpPage(SIDE_KEYS, ("figures", SIDE_DEFINITIONS))
