"""Lines of a transcript as they were last handed to Textual, so that scrolling draws only what is new."""

from __future__ import annotations

from collections.abc import Callable

from textual.strip import Strip

MOST = 400
"""Lines that are kept. Each takes tens of kB, with all that Textual remembers of it."""


class DrawnLines:
    """A cache of finished strips by line number, valid for one state of everything else they depend on."""

    def __init__(self) -> None:
        self._lines: dict[int, tuple[Strip, Strip]] = {}
        """Of each line: as its block gave it, and as it was handed out."""
        self._state: tuple[object, ...] = ()

    @property
    def full(self) -> bool:
        """Whether more lines are kept than `MOST`."""
        return len(self._lines) > MOST

    def clear(self) -> None:
        """Forget every line."""
        self._lines = {}

    def use(self, state: tuple[object, ...], *, keep: bool) -> None:
        """Forget every line if the state they were drawn for has changed, or `keep` is false."""
        if state != self._state or not keep:
            self._lines, self._state = {}, state

    def get(self, line: int, plain: Strip, draw: Callable[[], Strip]) -> Strip:
        """The finished line; drawn if its block gives another strip (`plain`) than it did then."""
        known = self._lines.get(line)
        if known is None or known[0] is not plain:
            known = self._lines[line] = plain, draw()
        return known[1]
