"""The picture of the cache: whose blocks it holds, which of them are shared, and how many are free."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from string import ascii_lowercase

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from specchat.app.ui.keys import registered
from specchat.app.ui.rendering.figures import one_line
from specchat.app.ui.screens.dialogs import Dialog, framed
from specchat.engine import CacheUse, size_text

REFRESH_S = 1.0
CELLS = 400
"""Most cells of the picture."""
OTHERS = "other texts"
"""What is in the cache without a chat: questions about tokens, requests for titles."""
TITLE, NUMBER = 34, 10
"""Widths of a title and of a number in cells."""
_COLOURS = ("$fate-accepted", "$fate-correction", "$fate-bonus", "$primary", "$fate-rejected", "$warning")
_LEGEND = (
    "A cell has the letter of its chat, a capital where blocks are shared, · where they are free; blocks per cell: "
    "{:.3g}. Tokens are counted in whole blocks. Shared blocks are kept once, for all texts that begin with them, and "
    "counted for the first."
)


@dataclass(slots=True)
class Part:
    """The blocks of one chat."""

    blocks: int = 0
    shared: int = 0
    running: bool = False


class CacheScreen(Dialog[None]):
    """Shows what the cache holds, and asks for it again while it is open.

    Args:
        ask: requests a `CacheUse`, to be passed to `take`.
        chat_of: id and title of the chat of a request; the title is empty for a request of no chat.
    """

    BINDINGS = registered("cache", Binding("escape,alt+k,q", "dismiss", "close", key_display="esc"))

    def __init__(self, ask: Callable[[], object], chat_of: Callable[[str], tuple[int, str]]) -> None:
        super().__init__(classes="dialog")
        self._ask, self._chat_of = ask, chat_of

    def compose(self) -> ComposeResult:
        """All in one text, in a frame."""
        with framed(VerticalScroll(id="cache"), "cache", "esc closes"):
            yield Static("waiting for the engine …", id="cache-text")

    def on_mount(self) -> None:
        """Ask now, and again."""
        self._ask()
        self.set_interval(REFRESH_S, self._ask)

    def take(self, use: CacheUse) -> None:
        """Show the answer."""
        parts: dict[tuple[int, str], Part] = {}
        for text in reversed(use.texts):
            part = parts.setdefault(self._chat_of(text.request_id), Part())
            part.blocks += text.blocks
            part.shared += text.shared
            part.running |= text.running
        shown = [(title or OTHERS, part) for (_, title), part in parts.items()]
        shown.sort(key=lambda item: item[0] is OTHERS)
        self.query_one("#cache-text", Static).update(_picture(use, shown))


def _picture(use: CacheUse, parts: list[tuple[str, Part]]) -> Content:
    """How much is used, a cell for some blocks each, and a line for each chat."""
    used, cells = sum(part.blocks for _, part in parts), min(CELLS, use.blocks)
    memory = f"{size_text(used * use.block_bytes)} of {size_text(use.blocks * use.block_bytes)}"
    head = f"{used:,} of {use.blocks:,} blocks of {use.block_tokens} tokens used · {memory}\n\n"
    bar, rows = Content(), [Content.styled(f"{'chat':<{TITLE + 2}}{'tokens':>{NUMBER}}{'shared':>{NUMBER}}", "$quiet")]
    for (title, part), letter, colour in zip(parts, cycle(ascii_lowercase), cycle(_COLOURS)):
        kinds = part.blocks - part.shared, part.shared
        own, shared = (max(round(blocks * cells / use.blocks), 1) if blocks else 0 for blocks in kinds)
        bar = bar.append(Content.styled(letter * own + letter.upper() * shared, colour))
        name = Content(one_line(title)).truncate(TITLE, ellipsis=True, pad=True)
        tokens = (f"{blocks * use.block_tokens:>{NUMBER},}" for blocks in (part.blocks, part.shared))
        rows.append(Content.assemble((f"{letter} ", f"bold {colour}"), name, *tokens, " running" * part.running))
    bar = bar.append(Content.styled("·" * max(cells - len(bar), used < use.blocks), "$faint"))
    legend = Content.styled(_LEGEND.format(use.blocks / cells), "$quiet")
    return Content.assemble(head, bar, "\n\n", Content("\n").join(rows), "\n\n", legend)
