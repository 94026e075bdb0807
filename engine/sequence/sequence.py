"""State of one running sequence."""

from __future__ import annotations

from dataclasses import dataclass, field

from specchat.engine.outbox import Outbox
from specchat.engine.request import DEFAULT_GAMMA, MAX_GAMMA, NO_DRAFTER, Request
from specchat.engine.sequence.detokenizer import Detokenizer


@dataclass(slots=True)
class SequenceState:
    """Host-side state of one running request: a row of the batch, in one slot of the KV cache."""

    request: Request
    outbox: Outbox
    slot: int
    tokens: list[int]
    """Token ids of prompt and reply; of an encoder-decoder those of the decoder, from its start token on."""
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
    source: tuple[int, ...] = ()
    """What the encoder of an encoder-decoder reads; empty for other models."""
    encoded: bool = field(init=False)
    """Whether the target has read the source, if there is one."""

    room: int = 0
    """Largest useful draft length of the round being planned."""
    undrafted: int = 0
    """Tokens that the drafter has to read before the row's next round."""
    has_draft: bool = False
    """Whether the drafter already has a draft that is nearly always right and takes no draft step."""

    def __post_init__(self) -> None:
        self.encoded = not self.source

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt as its user counts them: the source's, without the start token."""
        return self.prompt_length + self._elsewhere

    @property
    def position(self) -> int:
        """Tokens of prompt and reply so far, as their user counts them."""
        return len(self.tokens) + self._elsewhere

    @property
    def shareable(self) -> list[int]:
        """Tokens whose cached keys and values would be the same for any other row: none behind a source of its own."""
        return [] if self.source else self.tokens[: self.cached]

    @property
    def emitted(self) -> int:
        """Tokens of the reply so far."""
        return len(self.tokens) - self.prompt_length

    @property
    def prefilled(self) -> bool:
        """Whether the target has read the source and all tokens but the last, which a round feeds."""
        return self.encoded and self.cached == len(self.tokens) - 1

    @property
    def repeatable(self) -> bool:
        """Whether its drafts may depend on nothing but the request: a sampled reply with a seed has to repeat."""
        return self.request.sampling.seed is not None and not self.request.sampling.greedy

    @property
    def adaptive(self) -> bool:
        """Whether γ is chosen anew each round.

        Not for a sampled reply with a seed: the choice depends on measured times and would not repeat.
        """
        return self.request.gamma is None and self.drafter != NO_DRAFTER and not self.repeatable

    def draft_room(self, context: int) -> int:
        """Largest useful draft length: the γ asked for, bounded by the context and the token limit.

        Args:
            context: tokens a slot can hold.
        """
        if self.drafter == NO_DRAFTER:
            return 0
        free = MAX_GAMMA if self.adaptive else DEFAULT_GAMMA
        asked = free if self.request.gamma is None else self.request.gamma
        return max(0, min(asked, context - len(self.tokens) - 1, self.request.max_tokens - self.emitted - 1))

    @property
    def _elsewhere(self) -> int:
        """Tokens of the prompt that are not among `tokens`: those of the source, whose place the start token takes."""
        return max(len(self.source) - 1, 0)
