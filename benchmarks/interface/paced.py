"""The app on a source that answers at a steady pace with what was recorded: no model, so that all cost is the app's.

    python -m benchmarks.interface.paced TOKENS_PER_SECOND FIGURES_FILE

Chats are kept where SPECCHAT_HOME says. At the end FIGURES_FILE has what was measured while replies ran.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path

from specchat.app.chat.request_manager import Session
from specchat.app.paths import database_file
from specchat.app.settings.settings import Settings
from specchat.app.sources.probe import Probe
from specchat.app.sources.source import Source
from specchat.app.storage.store import Store
from specchat.app.ui.app import SpecChat
from specchat.app.ui.pump import FRAME_S
from specchat.engine import Admitted, Finished, FinishReason, Ready, Record, Request, Round, read_trace

TRACES = Path(__file__).parents[2] / "assets" / "traces"
WARM_UP = 60
"""Frames before anything is measured."""


class PacedSource(Source):
    """Answers every request without end. All open ones share each round; together they get `rate` tokens a second.

    Its time goes by frames and stands still between them: a busy machine draws fewer of them, but each has the same
    work to do, and so processor time per frame can be measured on any machine.
    """

    def __init__(self, rate: float) -> None:
        self.figures: dict[str, float] = {}
        """What was measured up to the last frame."""
        self._rate = rate
        self._now = self._due = 0.0
        self._frames = 0
        self._first = (0.0, 0.0)
        """Processor time and time of day at the end of the warm-up."""
        records = [record for name in ("chat", "code") for record in read_trace(TRACES / f"{name}.jsonl")]
        self._rounds = [record for record in records if isinstance(record, Round) and record.number]
        # As on a GPU: on a processor half as many frames are drawn.
        self._ready = replace(next(record for record in records if isinstance(record, Ready)), device="cuda")
        self._out: list[Record] = []
        self._open: dict[str, Iterator[Round]] = {}

    def _measure(self) -> None:
        """Processor seconds of the process per second at full frame rate, and the frames that were really drawn."""
        if self._frames == WARM_UP:
            self._first = time.process_time(), time.monotonic()
        elif self._frames > WARM_UP:
            processor, start = self._first
            frames = self._frames - WARM_UP
            self.figures = {
                "share": (time.process_time() - processor) / (frames * FRAME_S),
                "frames_per_second": frames / (time.monotonic() - start),
            }

    def start(self) -> None:
        self._out.append(self._ready)

    def submit(self, request: Request) -> None:
        self._frames = 0
        self._due = self._due if self._open else self._now
        self._open[request.request_id] = self._answer(request.request_id)
        self._out.append(Admitted(request.request_id, prompt_tokens=40, reused_tokens=0, queued_s=0.0, at=self._now))

    def examine(self, request: Request, continuation: Sequence[int]) -> None:
        """Does nothing."""

    def cancel(self, request_id: str) -> None:
        if self._open.pop(request_id, None):
            self._out.append(Finished(request_id, FinishReason.CANCELLED, "", "", self._now))

    def drain(self) -> list[Record]:
        if self._open:
            self._frames += 1
            self._now += FRAME_S
            self._measure()
        while self._open and self._due <= self._now:
            self._batch()
        out, self._out = self._out, []
        return out

    def close(self) -> None:
        self._open.clear()

    def _batch(self) -> None:
        """One round of every open reply, as long as its tokens take."""
        batch = [next(rounds) for rounds in self._open.values()]
        seconds = sum(len(record.emitted) for record in batch) / self._rate
        self._due += seconds
        draft_s, verify_s, rest_s = seconds * 0.05, seconds * 0.9, seconds * 0.05
        self._out += [
            replace(record, rows=len(batch), at=self._due, draft_s=draft_s, verify_s=verify_s, rest_s=rest_s)
            for record in batch
        ]

    def _answer(self, request_id: str) -> Iterator[Round]:
        first = 53 * len(self._open) % len(self._rounds)  # so that no two replies are the same
        position = 40
        for number, record in enumerate(islice(cycle(self._rounds), first, None)):
            yield replace(record, request_id=request_id, number=number, position=position)
            position += len(record.emitted)


def main() -> None:
    rate, file = float(sys.argv[1]), Path(sys.argv[2])
    source, settings = PacedSource(rate), Settings(drafter="ngram", gamma=4, temperature=0.8)
    app = SpecChat(lambda: Session(source, settings, Store(database_file())), probe=Probe())
    app.run()
    file.write_text(json.dumps(source.figures), encoding="utf-8")


if __name__ == "__main__":
    main()
