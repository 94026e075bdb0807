"""What a lane took for one reply, and how two lanes compare. Each figure has one definition, given here.

Times are those of the lanes' own clocks (`engine.lanes`): what one lane does is never in the other's figures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from math import log

from engine.events import Admitted, Event, Finished, FinishReason, Round
from engine.statistics import Statistics
from engine.theory import expected_of_rounds, speedup_of_rounds

SAMPLED = (
    "The texts are sampled with the same seed: with and without drafts the distributions are equal, not the tokens."
)
WITHOUT_MODEL = ("none", "ngram", "copy")
"""Drafters whose arithmetic is nothing beside the target's."""


class LaneTally:
    """The figures of one reply in one lane. Feed every event of its request with `add`.

    Args:
        draft_share: ĉ of the lane's draft model or head (`engine.lane_engine.LaneReady`).
    """

    def __init__(self, draft_share: float = 0.0) -> None:
        self.statistics = Statistics()
        self.tokens: list[int] = []
        self.lengths: Counter[int] = Counter()
        """How many rounds drafted for each number of positions."""
        self.read_tokens = 0
        """Tokens of the prompt that were read, and not in the cache from an earlier turn."""
        self.reason: FinishReason | None = None
        self.message = ""
        self._share = draft_share
        self._began: float | None = None
        self._first = 0.0
        self._now = 0.0
        self._verified = 0
        self._steady: Counter[int] = Counter()
        self._draft_s = 0.0
        self._drafts = False

    def add(self, event: Event) -> None:
        """Count one event."""
        self._now = max(self._now, event.at)
        match event:
            case Admitted():
                self._began = event.at - event.queued_s
                self.read_tokens = event.prompt_tokens - event.reused_tokens
                self.statistics.add(event)
            case Round():
                if not self.tokens:
                    self._first = event.at - event.seconds
                self.tokens += event.emitted
                self.lengths[event.steps] += 1
                self._verified += event.verified
                self._drafts |= event.drafter not in WITHOUT_MODEL
                if event.number:  # a first draft may have read the whole prompt: that is no draft step
                    self._steady[event.steps] += 1
                    self._draft_s += event.draft_s
                self.statistics.add(event)
            case Finished():
                self.reason, self.message = event.reason, event.message

    @property
    def ended(self) -> bool:
        """Whether nothing more comes."""
        return self.reason is not None

    @property
    def seconds(self) -> float:
        """The lane's clock: all its work for this reply, from its submission on, the reading of the prompt included."""
        return 0.0 if self._began is None else self._now - self._began

    @property
    def reading_s(self) -> float:
        """The part of `seconds` before the first round."""
        return 0.0 if self._began is None or not self.tokens else self._first - self._began

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens of the reply / time from the start of its first round to the end of its last."""
        return self.statistics.tokens_per_second

    @property
    def passes(self) -> int:
        """Passes of the target that decoded; one per round."""
        return self.statistics.rounds

    @property
    def passes_saved(self) -> int:
        """Tokens − passes: what decoding one token per pass would have needed more."""
        return len(self.tokens) - self.passes

    @property
    def drafts(self) -> bool:
        """Whether anything was drafted."""
        return any(self.lengths[n] for n in self.lengths if n)

    @property
    def pass_s(self) -> float | None:
        """Time of one verification, on average."""
        return self.statistics.verify_s / self.passes if self.passes else None

    @property
    def draft_step_s(self) -> float | None:
        """Time of drafting / positions drafted for, first rounds left out."""
        steps = sum(n * count for n, count in self._steady.items())
        return self._draft_s / steps if steps else None

    @property
    def alpha(self) -> float | None:
        """Estimate of α (Leviathan et al. 2023, Corollary 3.6)."""
        return self.statistics.alpha

    @property
    def work(self) -> float | None:
        """Arithmetic per token / that of one token per pass: ((n + 1) + ĉn), n drafted, over rounds, per token."""
        return self._operations / len(self.tokens) if self.tokens else None

    @property
    def predicted_work(self) -> float | None:
        """The same by Theorem 3.11, with the tokens that the measured α gives over the draft lengths that were run."""
        if self.alpha is None:
            return None
        return self._operations / expected_of_rounds(min(self.alpha, 1.0), self.lengths)

    @property
    def _operations(self) -> float:
        return self._verified + self.passes + self._draft_share * self._verified

    @property
    def _draft_share(self) -> float:
        return self._share if self._drafts else 0.0


@dataclass(frozen=True)
class Comparison:
    """Two lanes on one prompt."""

    left: LaneTally
    right: LaneTally
    same_target: bool = True

    @property
    def measured(self) -> float | None:
        """Speedup of the right lane: time per token at the left / time per token at the right, rounds only."""
        left, right = self.left.tokens_per_second, self.right.tokens_per_second
        return right / left if left and right else None

    @property
    def measured_in_all(self) -> float | None:
        """The same with all of the lanes' work, the reading of the prompt included."""
        if not (self.left.tokens and self.right.tokens and self.right.seconds):
            return None
        left, right = (lane.seconds / len(lane.tokens) for lane in (self.left, self.right))
        return left / right

    @property
    def cost_ratio(self) -> float | None:
        """c: time of one draft step / time of a target pass of the lane that does not draft."""
        if not self.same_target or self.left.drafts is self.right.drafts:
            return None
        plain, drafting = (self.right, self.left) if self.left.drafts else (self.left, self.right)
        step, target = drafting.draft_step_s, plain.pass_s
        return step / target if step is not None and target else None

    @property
    def predicted(self) -> float | None:
        """Speedup of the right lane by Theorem 3.8, with the measured α and c over the draft lengths that were run.

        None where both lanes draft, or neither, or the targets differ: c then has nothing to be measured against.
        """
        c = self.cost_ratio
        drafting = self.left if self.left.drafts else self.right
        if c is None or drafting.alpha is None:
            return None
        gain = speedup_of_rounds(min(drafting.alpha, 1.0), drafting.lengths, c)
        return gain if drafting is self.right else 1 / gain

    @cached_property
    def difference(self) -> int | None:
        """Tokens before the first that differs, one text ending before the other included; None if none does."""
        return first_difference(self.left.tokens, self.right.tokens)

    @property
    def identical(self) -> bool:
        """Whether both texts are the same, token for token."""
        return self.difference is None


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Where two replies first differ, one ending before the other included; None if they do not."""
    return next((i for i, (x, y) in enumerate(zip_longest(a, b)) if x != y), None)


def top2_gap(events: Sequence[Event]) -> float | None:
    """By how many logits the target prefers its first choice to its second, from a round with `Round.detail`."""
    for event in events:
        if isinstance(event, Round) and event.detail and len(event.detail[-1].target) > 1:
            first, second = event.detail[-1].target[:2]
            return log(first.probability / second.probability)
    return None
