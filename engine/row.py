"""One request while it runs: a row of the batch, in one slot of the cache."""

from __future__ import annotations

from dataclasses import dataclass

from engine.outbox import Outbox
from engine.request import DEFAULT_GAMMA, MAX_GAMMA, Request
from engine.text import ReplyText


@dataclass(slots=True)
class Row:
    """The state of one running request, on the host."""

    request: Request
    outbox: Outbox
    slot: int
    tokens: list[int]
    """Prompt and reply."""
    prompt_length: int
    cached: int
    """Leading tokens whose keys and values are in the slot; when decoding, all but the last."""
    seed: int
    text: ReplyText
    drafter: str
    """Starts as the request's; becomes none if that one fails."""
    admitted_at: float = 0.0
    rounds: int = 0
    continued: int = 0
    """Tokens at the end of the prompt that are the beginning of a reply, to be gone on from."""

    @property
    def emitted(self) -> int:
        """Tokens of the reply so far."""
        return len(self.tokens) - self.prompt_length

    @property
    def prefilled(self) -> bool:
        """Whether the row is ready for a round."""
        return self.cached == len(self.tokens) - 1

    @property
    def adaptive(self) -> bool:
        """Whether γ is chosen round by round.

        Not where a seed is to repeat a sampled reply: what is chosen follows the clock.
        """
        request = self.request
        repeatable = request.sampling.seed is not None and not request.sampling.greedy
        return request.gamma is None and self.drafter != "none" and not repeatable

    def draft_room(self, context: int, steady: int = DEFAULT_GAMMA) -> int:
        """Positions worth drafting for: what was asked for, less what the context or the token limit would cut off.

        Args:
            context: tokens a row can hold.
            steady: γ where none was asked for, and none may be adapted.
        """
        if self.drafter == "none":
            return 0
        free = MAX_GAMMA if self.adaptive else steady
        asked = free if self.request.gamma is None else self.request.gamma
        return max(0, min(asked, context - len(self.tokens) - 1, self.request.max_tokens - self.emitted - 1))
