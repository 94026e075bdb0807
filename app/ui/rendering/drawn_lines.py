"""Lines of a transcript as they were last handed to Textual, so that scrolling draws only what is new."""

from __future__ import annotations

from collections.abc import Callable

from textual.strip import Strip

MOST = 400
"""Lines that are kept. Each takes tens of kB, with all that Textual remembers of it."""


class DrawnLines:
    """A cache of finished strips by the strips they are made of, valid for one state of all else they depend on."""

    def __init__(self) -> None:
        self._lines: dict[int, tuple[Strip, Strip]] = {}
        """Of each line: as its block gave it, by whose identity it is found, and as it was handed out."""
        self._state: tuple[object, ...] = ()

    @property
    def full(self) -> bool:
        """Whether more lines are kept than `MOST`."""
        return len(self._lines) > MOST

    def clear(self) -> None:
        """Forget every line."""
        self._lines = {}

    def use(self, state: tuple[object, ...]) -> None:
        """Forget every line if the state they were drawn for has changed."""
        if state != self._state:
            self._lines, self._state = {}, state

    def get(self, plain: Strip, draw: Callable[[], Strip]) -> Strip:
        """The finished line; drawn if its block gives a strip (`plain`) that was not there before."""
        known = self._lines.get(id(plain))
        if known is None:
            known = self._lines[id(plain)] = plain, draw()
        return known[1]
