"""Lines of calls of tools and of their results: each on one line, or unfolded to all of its text."""

from collections.abc import Iterable

from rich.cells import cell_len

from specchat.app.chat.parts import fields
from specchat.app.sanitize import escape_controls
from specchat.app.ui.rendering.figures import cut
from specchat.app.ui.rendering.token_lines import TokenLines
from specchat.engine import Fate, MessagePart, PartKind

FOLDED_SIGN, OPEN_SIGN = "▸", "▾"
_INDENT = "  "


class ToolLines:
    """Calls or results at one width.

    Args:
        width: Cells of a line.
        opened: Whether all of them are unfolded at first.
    """

    def __init__(self, width: int, *, opened: bool) -> None:
        self._width, self._opened = width, opened
        self.toggled: frozenset[int] = frozenset()
        """Numbers of the parts that were folded or unfolded one by one."""
        self._shown: tuple[tuple[MessagePart, str], ...] = ()
        self.lines: list[str] = []
        self._firsts: dict[int, int] = {}
        """Number of the part whose first line this is."""

    def show(self, parts: Iterable[tuple[MessagePart, str]]) -> None:
        """Show these parts, each with what is said about it."""
        self._shown, self.lines, self._firsts = tuple(parts), [], {}
        for number, (part, about) in enumerate(self._shown):
            self._firsts[len(self.lines)] = number
            self.lines += self._of(part, about, opened=self._opened is not (number in self.toggled))

    def toggle(self, line: int) -> bool:
        """Fold or unfold the part whose first line this is; returns whether there is one."""
        if line not in self._firsts:
            return False
        self.toggled = self.toggled ^ {self._firsts[line]}
        self.show(self._shown)
        return True

    def _of(self, part: MessagePart, about: str, *, opened: bool) -> list[str]:
        called = part.kind is PartKind.CALL
        head = f"{OPEN_SIGN if opened else '→' if called else FOLDED_SIGN} {escape_controls(part.name)}"
        about = f" · {about}" if about else ""
        if opened:
            said = "\n".join(f"{name}: {value}" for name, _, value in fields(part)) if called else part.text
            said = said or "no arguments"
            wrapped = TokenLines(self._width - len(_INDENT))
            wrapped.append([(said, Fate.PLAIN)], 0)
            texts = ("".join(piece.text for piece in line) for line in wrapped.lines)
            return [cut(head + about, self._width), *(_INDENT + text for text in texts)]
        text = escape_controls(" ".join(part.text[: 4 * self._width].split()))
        if not called and (len(part.text) > 4 * self._width or cell_len(f"{head} {text}{about}") > self._width):
            about = f" · {len(part.text):,} characters{about}"
        return [f"{head} {cut(text, max(self._width - cell_len(f'{head} {about}'), 1))}{about}"]
