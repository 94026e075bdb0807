"""Figures of one reply in a lane, and of the comparison of two lanes. Each figure is defined here and nowhere else.

Times are of the lanes' own clocks (`engine.events`): work of one lane never counts in the other's figures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from math import log, sqrt

from specchat.engine.events import Admitted, Event, Speedup, Totals
from specchat.engine.registry import DRAFTERS, Reads
from specchat.engine.round import Round
from specchat.engine.stats.metrics import Metrics
from specchat.engine.stats.speedup import Spread, expected_of_rounds, speedup_of_rounds

SAMPLED = (
    "The texts are sampled with the same seed: the distributions are equal, and the tokens where the width of a pass "
    "changes no bits. With a seed, drafts are the likeliest tokens: fewer are accepted than in a chat without one."
)
WITHOUT_MODEL = {name for name, entry in DRAFTERS.items() if entry.reads is Reads.NOTHING}
"""Drafters whose arithmetic is negligible compared with the target's."""


class LaneTally:
    """Figures of one reply in one lane. Pass every event of its request to `add`.

    Args:
        draft_share: ĉ of the lane's draft model or head (`engine.lanes.engine.LaneReady`).
    """

    def __init__(self, draft_share: float = 0.0) -> None:
        self.metrics = Metrics()
        self.tokens: list[int] = []
        self.lengths = Counter[int]()
        """Draft length to number of rounds."""
        self._share = draft_share
        self._began: float | None = None
        self._first = 0.0
        self._now = 0.0
        self._verified = 0
        self._drafted = 0
        """Verified tokens of drafters whose own arithmetic counts."""
        self._steps = 0
        self._draft_s = 0.0
        self.spread = Spread()
        """Sums of the tokens of each round, and of its time."""

    def add(self, event: Event) -> None:
        """Add one event."""
        self._now = max(self._now, event.at)
        if isinstance(event, Admitted | Round | Totals):
            self.metrics.add(event)
        if isinstance(event, Admitted):
            self._began = event.at - event.queued_s
        elif isinstance(event, Round):
            if not self.tokens:
                self._first = event.at - event.seconds
            self.tokens += event.emitted
            self.lengths[event.steps] += 1
            self.spread.add(len(event.emitted), event.seconds)
            self._verified += event.verified
            self._drafted += 0 if event.drafter in WITHOUT_MODEL else event.verified
            if event.number:  # a first draft may include prefill, which is no draft step
                self._steps += event.steps
                self._draft_s += event.draft_s

    @property
    def seconds(self) -> float:
        """Seconds of all work for this reply since its submission, by the lane's clock; includes prefill."""
        return 0.0 if self._began is None else self._now - self._began

    @property
    def reading_s(self) -> float:
        """Prefill: the part of `seconds` before the first round."""
        return 0.0 if self._began is None or not self.tokens else self._first - self._began

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens of the reply / time from the start of its first round to the end of its last."""
        return self.metrics.tokens_per_second

    @property
    def passes(self) -> int:
        """Decoding passes of the target; one per round. 0 where a server does not say."""
        return self.metrics.passes or 0

    @property
    def passes_saved(self) -> int:
        """Tokens - passes: passes that plain decoding would have needed in addition."""
        return self.metrics.emitted - self.passes if self.passes else 0

    @property
    def drafts(self) -> bool:
        """Whether anything was drafted."""
        return any(self.lengths)

    @property
    def pass_s(self) -> float | None:
        """Mean seconds per verification."""
        return self.metrics.verify_s / self.passes if self.passes else None

    @property
    def draft_step_s(self) -> float | None:
        """Drafting time / positions drafted for, without first rounds."""
        return self._draft_s / self._steps if self._steps else None

    @property
    def work(self) -> float | None:
        """Arithmetic operations per token, relative to plain decoding: Σ over rounds of (K + 1 + ĉK) / tokens.

        None for a reply of another server, whose drafter is not known.
        """
        return self._operations / len(self.tokens) if self.tokens and not self.metrics.observed else None

    @property
    def predicted_work(self) -> float | None:
        """`work` by Theorem 3.11: with the tokens expected from the measured α and the draft lengths that were run."""
        alpha = self.metrics.alpha
        return None if alpha is None else self._operations / expected_of_rounds(min(alpha, 1.0), self.lengths)

    @property
    def _operations(self) -> float:
        return self._verified + self.passes + self._share * self._drafted


@dataclass(frozen=True)
class Comparison:
    """Comparison of two lanes on one prompt."""

    left: LaneTally
    right: LaneTally
    same_target: bool = True

    @property
    def measured(self) -> float | None:
        """Speedup of the right lane: time per token left / time per token right, over rounds only."""
        left, right = self.left.tokens_per_second, self.right.tokens_per_second
        return right / left if left and right else None

    @property
    def measured_in_all(self) -> float | None:
        """Speedup of the right lane over all work of the lanes, prefill included."""
        if not (self.left.tokens and self.right.tokens and self.right.seconds):
            return None
        left, right = (lane.seconds / lane.metrics.emitted for lane in (self.left, self.right))
        return left / right

    @property
    def cost_ratio(self) -> float | None:
        """c: time of one draft step / time of a target pass in the lane that does not draft."""
        if not self.same_target or self.left.drafts is self.right.drafts:
            return None
        step, target = self._drafting.draft_step_s, self._plain.pass_s
        return step / target if step is not None and target else None

    @property
    def predicted(self) -> float | None:
        """Speedup of the right lane by Theorem 3.8, from the measured α and c and the draft lengths that were run.

        None if both lanes draft, or neither, or the targets differ: c cannot be measured then.
        """
        c, alpha = self.cost_ratio, self._drafting.metrics.alpha
        if c is None or alpha is None:
            return None
        gain = speedup_of_rounds(min(alpha, 1.0), self._drafting.lengths, c)
        return gain if self._drafting is self.right else 1 / gain

    def gain(self, lane: LaneTally) -> Speedup | None:
        """The speedup of a lane that drafts over the other, which does not; None where it cannot be measured."""
        c, measured, predicted, s = self.cost_ratio, self.measured, self.predicted, lane.metrics
        pass_s, passes_s = self._plain.pass_s, s.draft_s + s.verify_s
        if lane is not self._drafting or not (c is not None and measured and predicted and pass_s and passes_s):
            return None
        if lane is self.left:
            measured, predicted = 1 / measured, 1 / predicted
        steps = sum(count * (gamma * c + 1) for gamma, count in lane.lengths.items())
        acceptance, passes = s.emitted / (predicted * steps), steps * pass_s / passes_s
        return Speedup(
            c=c,
            predicted=predicted,
            measured=measured,
            error=min(sqrt(self.left.spread.variance + self.right.spread.variance), 1.0),
            acceptance=acceptance,
            passes=passes,
            overhead=measured / (predicted * acceptance * passes),
        )

    @property
    def _drafting(self) -> LaneTally:
        """The lane that drafts, if one does."""
        return self.left if self.left.drafts else self.right

    @property
    def _plain(self) -> LaneTally:
        return self.right if self.left.drafts else self.left

    @cached_property
    def difference(self) -> int | None:
        """Number of equal tokens before the first difference (a different end counts); None if they are equal."""
        return first_difference(self.left.tokens, self.right.tokens)

    @property
    def identical(self) -> bool:
        """Whether both replies have the same tokens."""
        return self.difference is None


def first_difference(a: Sequence[int] | str, b: Sequence[int] | str) -> int | None:
    """Index at which two replies, tokens or texts, first differ (a different end counts); None if they are equal."""
    return next((i for i, (x, y) in enumerate(zip_longest(a, b)) if x != y), None)


def top2_gap(events: Sequence[Event]) -> float | None:
    """Difference of the target's two largest logits, from the first round with `Round.detail`; None without one."""
    for event in events:
        if isinstance(event, Round) and event.detail and len(event.detail[-1].target) > 1:
            first, second = event.detail[-1].target[:2]
            return log(first.probability / second.probability)
    return None
