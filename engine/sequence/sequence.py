"""State of one running sequence."""

from __future__ import annotations

from dataclasses import dataclass

from specchat.engine.outbox import Outbox
from specchat.engine.request import DEFAULT_GAMMA, MAX_GAMMA, Request
from specchat.engine.sequence.detokenizer import Detokenizer


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
    """The request's drafter; none once it has failed."""
    admitted_at: float = 0.0
    rounds: int = 0
    continued: int = 0
    """Trailing prompt tokens that prefill the assistant reply."""

    room: int = 0
    """Largest useful draft length of the round being planned."""

    @property
    def emitted(self) -> int:
        """Tokens of the reply so far."""
        return len(self.tokens) - self.prompt_length

    @property
    def prefilled(self) -> bool:
        """Whether the target has read all tokens but the last, which a round feeds."""
        return self.cached == len(self.tokens) - 1

    @property
    def adaptive(self) -> bool:
        """Whether γ is chosen anew each round.

        Not for a sampled reply with a seed: the choice depends on measured times and would not repeat.
        """
        request = self.request
        repeatable = request.sampling.seed is not None and not request.sampling.greedy
        return request.gamma is None and self.drafter != "none" and not repeatable

    def draft_room(self, context: int) -> int:
        """Largest useful draft length: the γ asked for, bounded by the context and the token limit.

        Args:
            context: tokens a slot can hold.
        """
        if self.drafter == "none":
            return 0
        free = MAX_GAMMA if self.adaptive else DEFAULT_GAMMA
        asked = free if self.request.gamma is None else self.request.gamma
        return max(0, min(asked, context - len(self.tokens) - 1, self.request.max_tokens - self.emitted - 1))
