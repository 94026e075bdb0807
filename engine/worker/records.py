"""Records of rounds, made from the tokens that a round added to a row, and emitted while later rounds run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import inf
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, NamedTuple

from specchat.engine.decoding.draft import Source
from specchat.engine.decoding.round import Outcome
from specchat.engine.decoding.top_logprobs import unpack
from specchat.engine.events import FinishReason
from specchat.engine.round import Call, Fate, Refused, Round
from specchat.engine.sequence.sequence import SequenceState


class Times(NamedTuple):
    """Times of a round, as in its records."""

    at: float
    draft_s: float
    verify_s: float
    rest_s: float
    plain_s: float
    rows: int
    context: int


class Decoded(NamedTuple):
    """What a token adds to a reply."""

    text: str
    thinking: bool
    calls: tuple[Call, ...]
    """Calls of tools that it completes."""
    parts: tuple[Call, ...]
    """Parts of calls that it writes."""


@dataclass(slots=True)
class Commit:
    """Tokens that a round has added to a row. The next round may run before `emit` makes the record of it."""

    row: SequenceState
    outcome: Outcome
    sources: Sequence[Source]
    eos: Collection[int]
    number: int
    """Number of the round."""
    drafter: str
    detail: int
    position: int
    """Tokens before the round."""
    added: list[int] = field(default_factory=list)
    """The tokens added: up to the first that ends the reply."""
    pieces: list[Decoded] = field(default_factory=list)
    """What they add to the reply, if the row has stop strings: else `emit` decodes them."""
    reason: FinishReason | None = None
    """Why the reply ends here; None if it continues."""

    @classmethod
    def of(
        cls, row: SequenceState, outcome: Outcome, sources: Sequence[Source], eos: Collection[int], context: int
    ) -> Commit:
        """Add a round's tokens to a row, up to the first that ends the reply.

        Args:
            row: gains the tokens; its `cached` follows.
            outcome: what the round decided.
            sources: the drafts that its draft was combined from.
            eos: tokens that end a reply.
            context: tokens that fit.
        """
        made = cls(row, outcome, sources, eos, row.rounds, row.drafter, row.request.detail, len(row.tokens))
        row.rounds += 1
        row.cached += 1 + outcome.accepted
        for token in outcome.emitted:
            row.tokens.append(token)
            made.added.append(token)
            if row.text.stops:
                made.pieces.append(made.decode(token))
            made.reason = _reason(row, token, eos, context)
            if made.reason:
                break
        row.cached = min(row.cached, len(row.tokens))
        return made

    def decode(self, token: int) -> Decoded:
        """What the next token adds to the reply."""
        text = "" if token in self.eos else self.row.text.add(token)
        return Decoded(text, self.row.text.thinking, *self.row.text.take_calls())

    def emit(self, times: Times) -> None:
        """Build and emit the record. If that fails the row has failed: no more of its records are emitted."""
        if self.row.failed is not None:
            return
        try:
            self.row.outbox.put(self._record(times))
        except BaseException as error:  # its text, its record: nothing that the others share
            self.row.failed = error

    def _record(self, times: Times) -> Round:
        """The immutable record; tokens after the end of the reply are dropped."""
        row, outcome, tests, added = self.row, self.outcome, self.outcome.tests, self.added
        decoded = self.pieces or [self.decode(token) for token in added]
        pieces, thinking, calls, parts = zip(*decoded, strict=True)
        cut = len(added) <= outcome.accepted
        accepted = len(added) if cut else outcome.accepted
        drafted = tests.drafted[:accepted] if cut else tests.drafted
        tested = accepted if cut else len(tests.p)
        if cut:
            fate = None
        elif accepted < tested:
            fate = Fate.CORRECTION
        else:
            fate = Fate.BONUS if drafted else Fate.PLAIN
        others = row.text.alternative(drafted[accepted:], after=row.tokens[self.position + accepted - 1])
        return Round(
            request_id=row.request.request_id,
            number=self.number,
            position=self.position,
            drafter=self.drafter,
            gamma=outcome.gamma,
            drafted=tuple(drafted),
            p=tuple(tests.p[:tested]),
            q=tuple(tests.q[:tested]),
            u=tuple(tests.u[:tested]),
            beta=tuple(tests.beta[:tested]),
            accepted=accepted,
            last=None if cut else outcome.last,
            last_fate=fate,
            pieces=(*pieces[:accepted], *others),
            last_piece="" if cut else pieces[-1],
            detail=self._details(tested, cut, fate),
            refused=tuple(
                tuple(Refused(token, row.text.name(token), *chances) for token, *chances in each)
                for each in tests.refused[:tested]
            ),
            offered=outcome.offered,
            thinking=thinking if any(thinking) else (),
            calls=tuple(chain.from_iterable(calls)),
            call_parts=tuple(chain.from_iterable(parts)),
            proposers=tuple(source.proposer(tests.drafted) for source in self.sources if tests.drafted),
            **times._asdict(),
        )

    def _details(self, tested: int, cut: bool, fate: Fate | None) -> tuple[Any, ...]:
        if not self.outcome.detail or not self.detail:
            return ()
        details = unpack(self.outcome.detail, tested, fate is Fate.CORRECTION, self.row.text.name, self.detail)
        return details[:tested] if cut else details


def _reason(row: SequenceState, token: int, eos: Collection[int], context: int) -> FinishReason | None:
    if token in eos:
        return FinishReason.EOS
    if row.text.stopped:
        return FinishReason.STOP
    if row.repetition is not None and row.repetition.add(token):
        return FinishReason.REPEATS
    if row.emitted >= row.request.max_tokens:
        return FinishReason.LENGTH
    if len(row.tokens) >= context:
        return FinishReason.CONTEXT
    return None


Work = Callable[[], None]
"""Makes and emits the records of a round."""
_MOST_HELD, MOST_HELD_S = 8, 0.024
"""Rounds whose records are made together, and seconds of rounds, if that is less. After each short pass, the code that
makes them would have to be read from memory again: records of some rounds take hardly longer than one."""


class Emission:
    """Thread that emits records, in order.

    Where passes block the engine's thread, they do so without the interpreter's lock, and this thread works during
    them. Work for a device that computes by itself begins once the next pass has been launched, as it would delay that.

    Args:
        held: whether work waits for `on_launch`.
    """

    def __init__(self, *, held: bool) -> None:
        self._held = held
        self._waiting: list[Work] = []
        self._waiting_s = 0.0
        """Seconds of the rounds whose work waits."""
        self._queue = SimpleQueue[Work | None]()
        self._begun = self._done = 0
        """Work that the thread has been given, and what it has done of it."""
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, name="emission", daemon=True)
        self._thread.start()

    def put(self, work: Work, seconds: float = inf) -> None:
        """Take in the work of a round that took `seconds`.

        It begins when there are enough rounds (`_MOST_HELD`), once earlier work is done.
        """
        self._waiting.append(work)
        self._waiting_s += seconds
        if not self._held:
            self.on_launch()

    def on_launch(self) -> None:
        """The next pass has been launched: begin the work that waits, if it is enough."""
        if len(self._waiting) >= _MOST_HELD or self._waiting_s >= MOST_HELD_S:
            self.release()

    def flush(self) -> None:
        """Begin work that waits for more rounds: something longer than a round comes first."""
        if not self._held:
            self.release()

    def release(self) -> None:
        """Begin all work that waits."""
        if self._waiting:
            self._wait()
        for work in self._taken():
            self._begin(work)

    def finish(self) -> None:
        """Wait until all work has been done; what is still held is done by the calling thread.

        Raises:
            Exception: what some work has raised since the last call.
        """
        self._wait()
        error, self._error = self._error, None
        if error is not None:
            raise error
        for work in self._taken():
            work()

    def close(self) -> None:
        """End the thread once all work is done.

        Raises:
            Exception: as `finish`.
        """
        try:
            self.finish()
        finally:
            self._queue.put(None)
            self._thread.join()

    def _taken(self) -> list[Work]:
        """The work that waits, which does so no longer."""
        work, self._waiting, self._waiting_s = self._waiting, [], 0.0
        return work

    def _wait(self) -> None:
        if self._done < self._begun:
            passed = Event()
            self._begin(passed.set)
            passed.wait()

    def _begin(self, work: Work) -> None:
        self._begun += 1
        self._queue.put(work)

    def _run(self) -> None:
        while work := self._queue.get():
            try:
                work()
            except BaseException as error:  # the engine's thread ends by it; this one serves those who wait for it
                self._error = error
            del work  # it holds the engine
            self._done += 1
