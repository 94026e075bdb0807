"""Metrics of replies, computed from `Round` records. Each figure is defined here only."""

from __future__ import annotations

from collections import deque
from copy import copy

from specchat.engine.events import Admitted, Totals
from specchat.engine.round import Fate, Round

WINDOW_S = 2.0


class Metrics:
    """Running metrics of one reply, or of several in sequence.

    Pass every `Admitted`, `Round` and `Totals` to `add`, in order. A property is None if its denominator is 0, or if a
    server does not report its parts.
    """

    def __init__(self) -> None:
        self.rounds = 0
        """Rounds so far; each is one target pass."""
        self.tested = 0
        """Tested positions, which end at the first rejection. A position of a tree counts once, whatever the number of
        tokens tested for it."""
        self.accepted = 0
        self.rejected = 0
        """Tokens that were tested and rejected, further candidates for a position included."""
        self.wasted = 0
        """Drafted tokens that are not part of the reply: rejected ones, and ones that were not tested."""
        self.emitted = 0
        """Tokens of the reply so far."""
        self.observed = False
        """Whether the rounds were reported by a server, without α."""
        self.unknown = 0
        """Emitted tokens of unknown fate; if not 0, `rounds` counts tokens and not target passes."""
        self.totals: Totals | None = None
        """The server's totals at the end of the reply."""
        self.position_tested: list[int] = []
        """Tested tokens at draft position 1, 2, …"""
        self.position_accepted: list[int] = []
        self.by_draft: dict[str, tuple[int, int]] = {}
        """Tested and accepted tokens of each draft, for drafters that combine several: positions up to its first
        rejection for which it drafted a token, and those where that token was accepted."""
        self.draft_s = 0.0
        self.verify_s = 0.0
        self.rest_s = 0.0
        self.prompt_tokens = 0
        self.reused_tokens = 0
        self._beta_sum = 0.0
        self._submitted_at: float | None = None
        self._first_at: float | None = None
        self._started_at = 0.0
        self._untimed = 0
        """Tokens of the first round of an observed reply, whose start time is not known."""
        self._last_at = 0.0
        self._recent: deque[tuple[float, int]] = deque()
        self._recent_since = 0.0
        self._recent_emitted = 0

    def add(self, event: Admitted | Round | Totals) -> None:
        """Count one event."""
        if isinstance(event, Totals):
            self._add_totals(event)
            return
        if isinstance(event, Admitted):
            self.prompt_tokens += event.prompt_tokens
            self.reused_tokens += event.reused_tokens
            if self._submitted_at is None:
                self._submitted_at = event.at - event.queued_s
            return
        emitted, tested = len(event.emitted), event.tested
        if self._first_at is None:
            self._first_at = event.at
            self._started_at = self._recent_since = event.at - event.seconds
            self._untimed = emitted if event.observed else 0
        self.rounds += 1
        self.tested += tested
        self.accepted += event.accepted
        self.rejected += event.rejected
        self.wasted += event.wasted
        self.emitted += emitted
        self.draft_s += event.draft_s
        self.verify_s += event.verify_s
        self.rest_s += event.rest_s
        self._beta_sum += sum(event.beta)
        self.observed |= event.observed
        self.unknown += event.last_fate is Fate.UNKNOWN
        self._add_positions(tested, event.accepted)
        for draft in event.proposers:
            before, judged = self.by_draft.get(draft.name, (0, 0)), draft.judged(event.accepted, tested)
            self.by_draft[draft.name] = before[0] + judged[0], before[1] + judged[1]
        self._last_at = event.at
        self._recent.append((event.at, emitted))
        self._recent_emitted += emitted
        while len(self._recent) > 1 and self._recent[0][0] <= event.at - WINDOW_S:
            self._recent_since, left = self._recent.popleft()
            self._recent_emitted -= left

    def _add_positions(self, tested: int, accepted: int) -> None:
        for i in range(tested):
            if i == len(self.position_tested):
                self.position_tested.append(0)
                self.position_accepted.append(0)
            self.position_tested[i] += 1
            self.position_accepted[i] += i < accepted

    def _add_totals(self, totals: Totals) -> None:
        """Fill in what the server's stream did not report."""
        self.totals = totals
        self.prompt_tokens = totals.prompt_tokens or self.prompt_tokens
        if not self.unknown:
            return
        self.emitted = totals.tokens or self.emitted
        for step in totals.steps or ():
            tested = min(step.accepted + 1, step.drafted)
            self.tested += tested
            self.accepted += step.accepted
            self.rejected += tested - step.accepted
            self.wasted += step.drafted - step.accepted
            self._add_positions(tested, step.accepted)

    @property
    def discarded(self) -> int:
        """Drafted tokens that were not tested."""
        return max(self.wasted - self.rejected, 0)

    def copy(self) -> Metrics:
        """Independent copy of the current metrics."""
        snapshot = copy(self)
        snapshot.position_tested, snapshot.position_accepted = self.position_tested[:], self.position_accepted[:]
        snapshot.by_draft = self.by_draft.copy()
        snapshot._recent = self._recent.copy()
        return snapshot

    @property
    def passes(self) -> int | None:
        """Target passes; None if the server does not report them."""
        if self.unknown:
            return self.totals.passes if self.totals else None
        return self.rounds

    @property
    def acceptance(self) -> float | None:
        """Accepted / tested."""
        return self.accepted / self.tested if self.tested else None

    @property
    def per_position(self) -> list[float]:
        """Accepted / tested at draft position 1, 2, …"""
        return [a / t for a, t in zip(self.position_accepted, self.position_tested, strict=True)]

    @property
    def mean_emitted_length(self) -> float | None:
        """τ: tokens emitted per target pass, the correction or bonus included."""
        return self.emitted / self.passes if self.passes else None

    @property
    def alpha(self) -> float | None:
        """Estimate of α: mean over tested positions of β, Σ min(p, q) (Leviathan et al. 2023, Corollary 3.6)."""
        return self._beta_sum / self.tested if self.tested and not self.observed else None

    @property
    def seconds(self) -> float:
        """Seconds from the start of the first round to the end of the last."""
        return self._last_at - self._started_at if self.rounds else 0.0

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens emitted / `seconds`, without the first round of an observed reply, whose duration is unknown."""
        return (self.emitted - self._untimed) / self.seconds if self.seconds > 0 else None

    @property
    def time_to_first_token_s(self) -> float | None:
        """Seconds from submission to the end of the first reply's first round, queueing and prefill included."""
        if self._first_at is None or self._submitted_at is None:
            return None
        return self._first_at - self._submitted_at

    @property
    def seconds_in_all(self) -> float | None:
        """Seconds from the first reply's submission to the end of the last round, queueing and prefill included."""
        return self._last_at - self._submitted_at if self.rounds and self._submitted_at is not None else None

    @property
    def recent_tokens_per_second(self) -> float | None:
        """Tokens of rounds that ended in the last `WINDOW_S` seconds / time since the end of the round before them.

        Rounds are counted as a whole, so that a slow one is not cut off.
        """
        span = self._last_at - self._recent_since
        return self._recent_emitted / span if span > 0 else None
