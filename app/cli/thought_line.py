"""One line on stderr for the thinking of a reply, where that is a terminal: how much it is, meanwhile and after."""

from __future__ import annotations

import sys

from specchat.app.chat.thinking import Thought
from specchat.app.cli.status_line import StatusLine
from specchat.engine import Round, Thinking

_DIM, _PLAIN = "\x1b[2m", "\x1b[22m"


class ThoughtLine:
    """Follows the rounds of one reply; `markers` are None for a model that does not think."""

    def __init__(self, markers: Thinking | None) -> None:
        self._thought = Thought(markers)
        self._line = StatusLine(sys.stderr)
        self._tokens = 0
        self._open = markers is not None

    def add(self, record: Round) -> None:
        """Say how far it is; once the answer has begun, how long it was."""
        if not self._open:
            return
        self._thought.add(record, self._tokens, own=True)
        self._tokens += len(record.drafted) + (record.last is not None)
        figures = self._thought.figures()
        if self._thought.running and figures is not None:
            self._line.say(figures.words(going_on=True))
        elif figures is not None:
            self.end()

    def end(self) -> None:
        """Leave what is known on a line of its own; nothing for a reply without thinking."""
        figures, opened = self._thought.figures(), self._open
        self._open = False
        self._line.clear()
        if opened and figures is not None and sys.stderr.isatty():
            print(f"{_DIM}{figures.words(going_on=False)}{_PLAIN}", file=sys.stderr, flush=True)
