"""State of one running sequence."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from specchat.engine.events import Outbox
from specchat.engine.request import DEFAULT_GAMMA, MAX_GAMMA, NO_DRAFTER, Request
from specchat.engine.sampling_settings import Sampling
from specchat.engine.sequence.detokenizer import Detokenizer
from specchat.engine.sequence.row_constraint import RowConstraint


@dataclass(slots=True)
class SequenceState:
    """Host-side state of one running request: a row of the batch, in one slot of the KV cache."""

    request: Request
    outbox: Outbox
    slot: int
    tokens: list[int]
    """Token ids of prompt and reply."""
    prompt_length: int
    cached: int
    """Leading tokens whose keys and values are in the slot; when decoding, all but the last."""
    seed: int
    text: Detokenizer
    drafter: str
    """The request's drafter; none after it has failed."""
    admitted_at: float = 0.0
    rounds: int = 0
    continued: int = 0
    """Number of trailing prompt tokens that are the beginning of the reply."""
    left: int = 0
    """Tokens that it may yet emit, when the round being planned begins."""
    room: int = 0
    """Largest useful draft length of the round being planned."""
    repetition: Repetition | None = None
    """Watches the reply, if it ends when it repeats itself."""
    steady: bool = False
    """Whether γ must not depend on measured times: a seed must repeat, and drafts matter, since the width of a pass
    decides last bits or the reply is lenient."""
    constraint: RowConstraint | None = None
    """What its reply has to follow, if it has to follow anything."""
    waits: bool = False
    """Whether it has given up its cache blocks and waits for others; then its text is read again."""

    greedy: bool = field(init=False)
    """Whether its tokens are the likeliest ones."""
    draws: bool = field(init=False)
    """Whether its drafts are drawn from distributions q. With a seed they are not: the tokens of a reply are then drawn
    by position, and drafted tokens are accepted where they are the drawn ones: the reply does not depend on drafts."""
    drafting: Sampling = field(init=False)
    """How drafters choose tokens."""
    adjusts: bool = field(init=False)
    """Whether bias or penalties change the target's logits."""
    failed: BaseException | None = None
    """Why it ends: what was raised as its tokens were committed or their record was made."""

    def __post_init__(self) -> None:
        sampling = self.request.sampling
        self.greedy, self.adjusts = sampling.greedy, sampling.adjusts
        self.draws = not sampling.greedy and sampling.seed is None
        self.drafting = sampling if self.draws else replace(sampling, temperature=0.0)

    @property
    def sampling(self) -> str:
        """The kind of sampling, which acceptance depends on."""
        return "greedy" if self.greedy else "sampled" if self.draws else "seeded"

    @property
    def reply_begin(self) -> int:
        """Place of the first token of the reply, which may be a given one."""
        return self.prompt_length - self.continued

    @property
    def emitted(self) -> int:
        """Number of reply tokens so far."""
        return len(self.tokens) - self.prompt_length

    @property
    def prefilled(self) -> bool:
        """Whether the target has processed all tokens except the last, which a round feeds."""
        return self.cached == len(self.tokens) - 1

    @property
    def adaptive(self) -> bool:
        """Whether γ is chosen in each round."""
        return self.request.gamma is None and self.drafter != NO_DRAFTER and not self.steady

    def measure_room(self, context: int) -> None:
        """Set `left` and `room`, the requested γ limited by that, for a context of `context` tokens."""
        self.left = min(context - len(self.tokens), self.request.max_tokens - self.emitted)
        free = MAX_GAMMA if self.adaptive else DEFAULT_GAMMA
        requested = free if self.request.gamma is None else self.request.gamma
        self.room = 0 if self.drafter == NO_DRAFTER else max(0, min(requested, self.left - 1))


LONGEST_PERIOD = 200
"""Most tokens of what is repeated."""
TIMES = 4
"""How often it must be there."""
LEAST = 64
"""Tokens of all its occurrences together: columns of a table, zeros and laughter are not repetitions."""


class Repetition:
    """Watches a growing reply for a period of up to `LONGEST_PERIOD` tokens that is there `TIMES` times in a row and
    for at least `LEAST` tokens.

    For each period it counts how many of the last tokens equal those one period before: one comparison of
    `LONGEST_PERIOD` tokens per new token, whatever the length of the reply.
    """

    def __init__(self) -> None:
        periods = np.arange(1, LONGEST_PERIOD + 1)
        self._needed = np.maximum(TIMES * periods, LEAST) - periods
        """Value of `_equal` at which a period is a repetition, by period."""
        self._recent: NDArray[np.int64] = np.full(LONGEST_PERIOD, -1)
        """The last tokens, the newest first; -1 before the reply."""
        self._equal = np.zeros(LONGEST_PERIOD, dtype=np.int64)
        """Number of last tokens that equal the tokens one period before, by period."""

    def add(self, token: int) -> bool:
        """Add a token; whether the reply repeats itself now."""
        self._equal = np.where(self._recent == token, self._equal + 1, 0)
        self._recent = np.concatenate([[token], self._recent[:-1]])
        return bool((self._equal >= self._needed).any())
