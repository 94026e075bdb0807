"""Sources of records: an engine, a lane of one (`side_by_side.lanes`), a server (`attached`), a trace (`player`).

`Stepper` pauses one, and then releases one round of the batch at a time, in parts (`Part`).
"""

from collections import deque
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Protocol

from specchat.engine import CacheUse, Counted, EngineError, Message, Record, Request, Round, Tool

NOTHING = "no model is loaded: /model loads one"
NO_CACHE = "only specchat's own engine shows what its cache holds"


class Source(Protocol):
    """Takes commands and returns records. No method waits for a model. `specchat.engine.Engine` is a source.

    A class that inherits from this one refuses requests and ignores other commands, unless it defines them.
    """

    def start(self) -> None:
        """Begin: `drain` then returns `Loading` records, and `Ready` at the end."""
        return

    def submit(self, request: Request) -> None:  # noqa: ARG002
        """Generate a reply.

        Raises:
            EngineError: the request cannot be served.
        """
        raise EngineError(NOTHING)

    def examine(self, request: Request, continuation: Sequence[int]) -> None:  # noqa: ARG002
        """Compute the distribution after these tokens of a reply to the request.

        Raises:
            EngineError: the request cannot be served.
        """
        raise EngineError(NOTHING)

    def cancel(self, request_id: str) -> None:  # noqa: ARG002
        """End a reply within one round."""
        return

    def adjust(self, request_id: str, drafter: str, gamma: int | None) -> None:  # noqa: ARG002
        """Change the drafter and γ of a reply, from its next round on.

        Raises:
            EngineError: there is no such drafter, or γ is out of range.
        """
        return

    def set_detail(self, request_id: str, detail: int) -> None:  # noqa: ARG002
        """Record the top-k of this size for each tested token of a request, from its next round on; 0 records none."""
        return

    def count(self, messages: tuple[Message, ...], key: str = "", tools: tuple[Tool, ...] = ()) -> None:  # noqa: ARG002
        """Report with a `Counted` how many tokens messages and tools take as a prompt, if there is a tokenizer."""
        return

    def show_cache(self) -> None:
        """Report with a `CacheUse` what the cache holds.

        Raises:
            EngineError: the source cannot tell.
        """
        raise EngineError(NO_CACHE)

    def keep_texts(self, names: Mapping[str, str]) -> None:  # noqa: ARG002
        """Write the cache of texts, named by the ids of their requests, to disk for the next start, if any."""
        return

    def pause(self) -> None:
        """Run no further round after the current one."""
        return

    def step(self) -> None:
        """While paused: run one more round of the batch."""
        return

    def resume(self) -> None:
        """Resume after `pause`."""
        return

    def drain(self) -> Sequence[Record]:
        """All records since the last call. Only a trace returns `Request` records."""
        return ()

    def close(self) -> object:
        """End everything."""
        return None


class NoSource(Source):
    """Source while no model is loaded: it refuses every request."""


class Part(IntEnum):
    """How much of a round is shown while it is stepped through."""

    DRAFTED = 0
    """The drafted tokens, not yet tested."""
    JUDGED = 1
    """Their fates; the correction or bonus is still to come."""


class Stepper:
    """Wraps a source, and passes everything on unless it is paused.

    While paused, it requests one round at a time and holds it until `step` has shown its parts: first the drafted
    tokens, then their fates, then the last token. A round without a draft has only the last token.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.start, self.submit, self.adjust, self.count = source.start, source.submit, source.adjust, source.count
        self.set_detail, self.show_cache, self.keep_texts = source.set_detail, source.show_cache, source.keep_texts
        self.paused = False
        self._held: deque[Record] = deque()
        self._released: list[Record] = []
        self._part: Part | None = None
        self._requested = False
        self._passing = False
        """Whether the next records are passed on even if paused."""

    @property
    def shown(self) -> list[tuple[Round, Part]]:
        """The rounds that are being stepped through, one for each request of the batch."""
        return [] if self._part is None else [(record, self._part) for record in self._batch()]

    def pause(self) -> None:
        """Hold records from the next round on."""
        self.paused = True
        self.source.pause()

    def resume(self) -> None:
        """Release held records, and continue."""
        self.paused, self._part, self._requested = False, None, False
        self.source.resume()

    def step(self) -> None:
        """Show the next part of the round; after the last part, request the next round."""
        if self._part is Part.DRAFTED:
            self._part = Part.JUDGED
        elif self._part is Part.JUDGED:
            self._release()
        elif not self._requested:
            self._requested = True
            self.source.step()

    def jump(self, *, back: bool) -> None:
        """The source has moved: its next records are passed on. After a step back it returns held records again."""
        if back:
            self._held.clear()
            self._released.clear()
        self._part, self._requested, self._passing = None, False, True

    def drain(self) -> list[Record]:
        """Records since the last call, up to the held round; answers about prompts and the cache are not held."""
        new = self.source.drain()
        out, self._released = self._released, []
        for record in new:
            (out if isinstance(record, Counted | CacheUse) else self._held).append(record)
        if not self.paused or self._passing:
            out += self._held
            self._held.clear()
            self._passing = False
            return out
        while self._held and not isinstance(self._held[0], Round):
            out.append(self._held.popleft())
        batch = self._batch()
        if batch and self._part is None and (len(batch) == batch[0].rows or not new):
            self._requested = False
            self._part = Part.DRAFTED
            if not any(record.drafted for record in batch):
                self._release()
                out += self._released
                self._released = []
        return out

    def examine(self, request: Request, continuation: Sequence[int]) -> None:
        """Compute the distribution after these tokens of a reply.

        Raises:
            EngineError: the request cannot be served, or rounds are held back.
        """
        if self.paused:
            raise EngineError("the engine is paused: resume it (p) first")
        self.source.examine(request, continuation)

    def cancel(self, request_id: str) -> None:
        """End a reply; its held records are released."""
        if any(record.request_id == request_id for record, _ in self.shown):
            self._release()
        self.source.cancel(request_id)

    def close(self) -> None:
        """Close the source; held records are released."""
        self.paused = False
        self.source.close()

    def _batch(self) -> list[Round]:
        """The rounds of the first held batch."""
        batch: dict[str, Round] = {}
        for record in self._held:
            if not isinstance(record, Round):
                continue
            first = next(iter(batch.values()), record)
            if record.request_id in batch or record.at - record.seconds > first.at:
                break
            batch[record.request_id] = record
            if len(batch) == first.rows:
                break
        return list(batch.values())

    def _release(self) -> None:
        batch = self._batch()
        last = max(i for i, record in enumerate(self._held) if any(record is each for each in batch))
        self._released += [self._held.popleft() for _ in range(last + 1)]
        self._part = None
