"""The app on a source that numbers its rounds, so that what is on screen can be compared with what is stored.

    python -m tests.stress.numbered [--rate ROUNDS_PER_SECOND] [--rounds N] [--pieces FILE] [--clock-back SECONDS]

Everything but the engine is the product's own. Chats are kept where SPECCHAT_HOME says.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from specchat.app.chat.request_manager import Session
from specchat.app.cli.commands.chat import open_store
from specchat.app.paths import settings_file
from specchat.app.settings.settings import Settings
from specchat.app.settings.settings_file import load_settings
from specchat.app.sources.source import Source
from specchat.app.ui.app import SpecChat
from specchat.engine import Admitted, Fate, Finished, FinishReason, Ready, Record, Request, Round

SLOTS = 4
READY = Ready("smollm2-135m", None, ("ngram", "none"), "cpu", "cpu", "float32", 4096, SLOTS, 0, 0, 0.0)


def word(number: int) -> str:
    """What the round of this number ends with; on screen and in the store it can be found again."""
    return f"w{number:05d} "


def numbered(request_id: str, number: int, rows: int, at: float, last: str) -> Round:
    """A round with one accepted token, one rejected one, and `last` as the correction."""
    return Round(
        request_id, number, position=40 + 2 * number, drafter="ngram", gamma=2, drafted=(1, 2), p=(0.5, 0.1),
        q=(1.0, 1.0), u=(0.1, 0.9), beta=(0.5, 0.1), accepted=1, last=3, last_fate=Fate.CORRECTION,
        pieces=("and ", "not "), last_piece=last, at=at, draft_s=0.001, verify_s=0.01, rest_s=0.001, rows=rows,
    )  # fmt: skip


class NumberedSource(Source):
    """Answers all requests at once, a batch of rounds every 1/`rate` seconds, without end or `rounds` long."""

    def __init__(self, rate: float, rounds: int | None, pieces: Sequence[str]) -> None:
        self._rate = rate
        self._rounds = rounds
        self._pieces = pieces
        self._paused = False
        self._steps = 0
        self._due = 0.0
        self._out: list[Record] = []
        self._open: dict[str, int] = {}
        """Number of the next round of each reply that is being written."""

    def start(self) -> None:
        self._out.append(READY)

    def submit(self, request: Request) -> None:
        self._due = self._due if self._open else time.monotonic()
        self._open[request.request_id] = 0
        self._out.append(Admitted(request.request_id, 40, 0, 0.0, time.monotonic()))

    def examine(self, request: Request, continuation: Sequence[int]) -> None:
        """Does nothing."""

    def cancel(self, request_id: str) -> None:
        if self._open.pop(request_id, None) is not None:
            self._out.append(Finished(request_id, FinishReason.CANCELLED, "", "", time.monotonic()))

    def pause(self) -> None:
        self._paused = True

    def step(self) -> None:
        self._steps += 1

    def resume(self) -> None:
        self._paused, self._steps, self._due = False, 0, time.monotonic()

    def drain(self) -> list[Record]:
        now = time.monotonic()
        if self._paused:
            self._due = now
            while self._steps and self._open:
                self._steps -= 1
                self._batch(now)
        while self._open and not self._paused and self._due <= now:
            self._batch(self._due)
            self._due += 1 / self._rate
        out, self._out = self._out, []
        return out

    def close(self) -> None:
        for request_id in list(self._open):
            self.cancel(request_id)

    def _batch(self, at: float) -> None:
        for request_id, number in list(self._open.items()):
            last = self._pieces[number % len(self._pieces)] if self._pieces else word(number)
            self._out.append(numbered(request_id, number, len(self._open), at, last))
            self._open[request_id] = number + 1
            if number + 1 == self._rounds:
                del self._open[request_id]
                self._out.append(Finished(request_id, FinishReason.EOS, "", "", at))


def backwards(seconds: float) -> Callable[[], float]:
    """A time of day that goes back by this much with every look."""
    now = time.time()

    def look() -> float:
        nonlocal now
        now -= seconds
        return now

    return look


def main() -> None:
    """Chat until the user leaves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=40.0)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--pieces", type=Path, help="a JSON list of texts, one for each round, instead of numbers")
    parser.add_argument("--clock-back", type=float, default=0.0)
    given = parser.parse_args()
    pieces = json.loads(given.pieces.read_text(encoding="utf-8")) if given.pieces else ()
    clock = backwards(given.clock_back) if given.clock_back else time.time
    source = NumberedSource(given.rate, given.rounds, pieces)

    def prepare() -> Session:
        settings, notice = load_settings(settings_file())
        store, notices = open_store(notice, now=clock)
        return Session(source, replace(settings, drafter="ngram"), store, notices, settings_file())

    app = SpecChat(prepare, theme=Settings().theme, now=clock)
    app.run()
    sys.exit(app.return_code or 0)


if __name__ == "__main__":
    main()
