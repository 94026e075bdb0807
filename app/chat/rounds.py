"""The rounds of one reply with a number for each token, their figures, and the places where the reply can be forked."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from specchat import engine
from specchat.app.chat.thinking import Thought, ThoughtFigures
from specchat.app.sources.marked import Unmarked
from specchat.app.sources.observed import observed_round, rounds_of_steps

LONGEST_COURSE = 200
"""Values kept for a sparkline: no line on a screen is longer."""
SAMPLE_S = 0.25
"""Seconds of rounds for each sample of the speed."""


@dataclass(frozen=True, slots=True, eq=False)
class ReplyFigures:
    """A snapshot of the figures of one reply. Snapshots compare by identity."""

    metrics: engine.Metrics
    gain: engine.Speedup | None
    """Predicted and measured speedup, once there are plain rounds to compare with; final when the reply has ended."""
    counted_rounds: int
    """Number of rounds that `gain` is computed from."""
    speeds: tuple[float, ...]
    """Tokens per second of the sliding window, newest last."""
    gammas: tuple[int, ...]
    """Drafted positions of each round, newest last."""
    running: bool
    """Whether more rounds may follow."""
    thought: ThoughtFigures | None = None
    """Figures of its thinking, if any."""


CHOSEN = "chosen"
"""Drafter of a round whose token was chosen by the user or came with a text."""
_PER_TOKEN = ("drafted", "p", "q", "u", "beta", "pieces", "detail", "refused", "thinking")
"""Fields of a round with an entry per drafted token, or per emitted one."""


class ReplyRounds:
    """The rounds of one reply, and what is counted of them.

    Tokens are numbered from 0 through all rounds: in a round the drafted ones, then the last one.

    Args:
        baseline: Plain rounds that the speedup is measured against.
    """

    def __init__(self, baseline: engine.Baseline) -> None:
        self.given = 0
        """How many of the rounds the reply started with: taken over from another reply, or chosen. No figure counts
        them."""
        self.carried = 0
        """Tokens of the rounds that were taken over."""
        self.told = False
        """Whether a server has reported the fates of all tokens at the end, which replaced the rounds."""
        self.measured: engine.Measured | None = None
        """The final speedup, once the reply has ended."""
        self._baseline = baseline
        self._admitted: engine.Admitted | None = None
        self._unmarked: Unmarked | None = None
        """Takes marks around the thinking out of the text, in records of earlier versions."""
        self._clear()
        self._clear_figures()

    def _clear_figures(self) -> None:
        self.metrics = engine.Metrics()
        """Figures of the own request."""
        self._gains = engine.SpeedupTracker(self._baseline)
        self._speeds: list[float] = []
        """Tokens per second of the sliding window, one sample each `SAMPLE_S`."""
        self._sampled_at = 0.0

    def _clear(self) -> None:
        self.list: list[engine.Round] = []
        self.starts: list[int] = []
        """Number of the first token of each round."""
        self.tokens = 0
        """Number of drafted or emitted tokens."""
        self.thought = Thought()

    @property
    def own(self) -> list[engine.Round]:
        """The rounds of the reply's own request."""
        return self.list[self.given :]

    @property
    def emitted(self) -> tuple[int, ...]:
        """Ids of the emitted tokens."""
        return tuple(token for record in self.list for token in record.emitted)

    def figures(self, *, running: bool) -> ReplyFigures:
        """A snapshot of the figures."""
        now = self.measured or self.measure()
        return ReplyFigures(
            metrics=self.metrics.copy(),
            gain=now.gain,
            counted_rounds=now.rounds,
            speeds=tuple(self._speeds[-LONGEST_COURSE:]),
            gammas=tuple(record.steps for record in self.own[-LONGEST_COURSE:]),
            running=running,
            thought=self.thought.figures(),
        )

    def measure(self) -> engine.Measured:
        """The speedup by now."""
        gains, read_s = self._gains, self._baseline.read_s
        return engine.Measured("", gains.gain(self.metrics.alpha), gains.rounds, read_s)

    def add(self, record: engine.Round) -> None:
        """Add a round of the reply's own request."""
        if self._unmarked is not None:
            record = self._unmarked.round(record)
        self._append(record, own=True)
        self._baseline.add(record)
        self._gains.add(record)
        self.metrics.add(record)
        speed = self.metrics.recent_tokens_per_second
        if self.metrics.rounds == 1:
            self._sampled_at = record.at  # the speed of one round says little
        elif speed is not None and record.at >= self._sampled_at + SAMPLE_S:
            self._speeds.append(speed)
            self._sampled_at = record.at

    def carry(self, rounds: Iterable[engine.Round]) -> None:
        """Start with the rounds of another reply."""
        for record in rounds:
            self._append(record)
        self.given, self.carried = len(self.list), len(self.emitted)

    def begin(self, request_id: str, admitted: engine.Admitted) -> None:
        """Start the own request after the carried rounds, with a round for each other given token.

        The times of carried rounds are moved to before the request's own, on whose clock the timeline is drawn.
        """
        rounds, self.carried = self.list, len(self.emitted)
        self._admitted = admitted
        self._clear()
        self._clear_figures()  # a stored trace has the carried rounds before the request's own
        given = admitted.given[self.carried :]
        if admitted.thinking is not None:
            self._unmarked = Unmarked(admitted.thinking)
            rounds, given = [*map(self._unmarked.round, rounds)], tuple(map(self._unmarked.given, given))
        for record in rounds:
            self._append(replace(record, at=record.at + admitted.at - rounds[-1].at))
        first = admitted.prompt_tokens - len(admitted.given)
        for place, token in enumerate(given, self.carried):
            self._append(_chosen_round(request_id, token, first + place, admitted.at))
        self.given = len(self.list)
        self.metrics.add(admitted)

    def end(self, finished: engine.Finished) -> engine.Finished:
        """The end of the own request, without marks around thinking."""
        return finished if self._unmarked is None else self._unmarked.finished(finished)

    def add_totals(self, totals: engine.Totals) -> None:
        """Add a server's totals; if they tell every pass, replace the tokens of unknown fate by the server's rounds."""
        unknown = self.metrics.unknown and totals.steps is not None
        told = rounds_of_steps(self.own, totals.steps or ()) if unknown else None
        if told is not None:
            given = self.list[: self.given]
            self.told = True
            self._clear()
            self.metrics = engine.Metrics()
            if self._admitted is not None:
                self.metrics.add(self._admitted)
            for record in given:
                self._append(record)
            for record in told:
                self._append(record, own=True)
                self.metrics.add(record)
        self.metrics.add(totals)

    def round_of(self, token: int) -> int:
        """The index of the round with this token."""
        return bisect_right(self.starts, token) - 1

    def token(self, number: int) -> tuple[engine.Round, engine.Token]:
        """A token by its number, and its round.

        Raises:
            IndexError: there is no such token.
        """
        if not 0 <= number < self.tokens:
            raise IndexError(number)
        index = self.round_of(number)
        record = self.list[index]
        return record, list(record.tokens())[number - self.starts[index]]

    def up_to(self, token: int) -> list[engine.Round]:
        """The rounds before a token; the last of them is cut before it.

        A rejected or discarded token and a correction come after the accepted tokens of their round.
        """
        if token >= self.tokens:
            return list(self.list)
        index = self.round_of(token)
        record = self.list[index]
        kept = min(token - self.starts[index], record.accepted)
        if not kept:
            return self.list[:index]
        parts = {name: getattr(record, name)[:kept] for name in _PER_TOKEN}
        cut = replace(record, accepted=kept, last=None, last_fate=None, last_piece="", **parts)
        return [*self.list[:index], cut]

    def fork(self, number: int) -> TokenFork:
        """The fork at a token.

        Raises:
            IndexError: there is no such token.
        """
        record, token = self.token(number)
        rounds = tuple(self.up_to(number))
        if record.observed:  # tokens have no ids
            return TokenFork(rounds, None, token.text, (), ())
        if token.fate is engine.Fate.DISCARDED:
            path = slice(record.accepted, token.place + 1)
            draft = Alternative(record.drafted[path], "".join(record.pieces[path]), "the draft up to here")
            return TokenFork(rounds, None, "", (draft,), ())
        place = min(token.place, record.accepted)
        is_last = place == record.accepted
        taken = record.last if is_last else record.drafted[place]
        text = record.last_piece if is_last else record.pieces[place]
        drafted = []
        if is_last and place < record.tested:
            drafted.append(_rejected(record.drafted[place], record.pieces[place], record.p[place], record.q[place]))
        if place < len(record.refused):
            drafted += [_rejected(other.id, other.text, other.p, other.q) for other in record.refused[place]]
        likeliest = record.detail[place].target if place < len(record.detail) else ()
        return TokenFork(rounds, taken, text, tuple(drafted), likeliest)

    def _append(self, record: engine.Round, *, own: bool = False) -> None:
        self.thought.add(record, self.tokens, own=own)
        self.list.append(record)
        self.starts.append(self.tokens)
        self.tokens += len(record.drafted) + (record.last is not None)


@dataclass(frozen=True, slots=True)
class Computed:
    """The top-k lists of one token, computed after the reply had ended."""

    detail: engine.Detail | None
    """None if they could not be computed."""
    note: str
    """Why they could not be computed, or a caveat; may be empty."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """Tokens that a reply can continue with at a fork."""

    ids: tuple[int, ...]
    text: str
    about: str
    """Their probabilities or origin, in words."""


@dataclass(frozen=True, slots=True)
class TokenFork:
    """A place in a reply where it can continue with other tokens."""

    rounds: tuple[engine.Round, ...]
    """The reply up to the place."""
    taken: int | None
    """The token that follows there in the reply; None at a discarded token."""
    taken_text: str
    drafted: tuple[Alternative, ...]
    """Drafted tokens that did not become part of the reply."""
    likeliest: tuple[engine.Candidate, ...]
    """The target's likeliest tokens; empty where they were not recorded."""

    def alternatives(self, likeliest: Sequence[engine.Candidate]) -> list[Alternative]:
        """The drafted tokens and then the likeliest ones, each once and without the token in the reply."""
        known = {alternative.ids for alternative in self.drafted} | {(self.taken,)}
        others = [Alternative((c.id,), c.text, f"p {c.probability:.3f}") for c in likeliest if (c.id,) not in known]
        return [*self.drafted, *others]


def _rejected(token: int, text: str, p: float, q: float) -> Alternative:
    return Alternative((token,), text, f"rejected · p {p:.3f} · q {q:.3f}")


def _chosen_round(request_id: str, token: engine.Given, position: int, at: float) -> engine.Round:
    """A round of one given token, without draft or verification. `position` is its place in the sequence."""
    made = observed_round(request_id, 0, position, engine.Step(0, 0), (token.text,), at, 0.0)
    return replace(made, drafter=CHOSEN, last=token.id, judged=None, thinking=(True,) if token.thinking else ())
