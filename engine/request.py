"""What the engine is asked: a conversation, how to sample, how to draft, when to stop."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from engine.errors import EngineError

ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation.

    Raises:
        EngineError: `role` is none of `ROLES`.
    """

    role: str
    content: str

    def __post_init__(self) -> None:
        _check(self.role in ROLES, f"role {self.role!r} is not known: choose one of {', '.join(ROLES)}")


@dataclass(frozen=True, slots=True)
class Sampling:
    """How logits become the standardised distribution (Leviathan et al. 2023, section 2.2).

    Raises:
        EngineError: a value is out of range.
    """

    temperature: float = 0.0
    """0 is greedy: all probability on the most likely token."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of most likely tokens whose probability reaches this; 1 keeps all."""
    min_p: float = 0.0
    """Drop tokens less likely than this share of the most likely one; 0 drops none."""
    seed: int | None = None
    """None draws one."""

    def __post_init__(self) -> None:
        _check(0 <= self.temperature < inf, f"temperature is {self.temperature:g}: it must be 0 (greedy) or more")
        _check(self.top_k >= 0, f"top-k is {self.top_k}: it must be 0 (off) or more")
        _check(0 < self.top_p <= 1, f"top-p is {self.top_p:g}: it must be above 0 and at most 1")
        _check(0 <= self.min_p < 1, f"min-p is {self.min_p:g}: it must be at least 0 and below 1")

    @property
    def greedy(self) -> bool:
        """Whether the standardised distribution has one token only."""
        return self.temperature == 0 or self.top_k == 1


@dataclass(frozen=True, slots=True)
class Request:
    """One reply to generate.

    The prompt is `messages` through the model's chat template, or `prompt` as it stands, or `prompt_ids`; exactly
    one of the three is given.

    Raises:
        EngineError: a value is out of range, or not exactly one kind of prompt is given.
    """

    request_id: str
    messages: tuple[Message, ...] = ()
    prompt: str | None = None
    prompt_ids: tuple[int, ...] = ()
    sampling: Sampling = field(default_factory=Sampling)
    drafter: str = "ngram"
    gamma: int = 4
    """Draft length asked for each round; 0 means no drafting."""
    max_tokens: int = 1024
    stop: tuple[str, ...] = ()
    """The reply ends before the first of these strings to appear in it."""
    detail: int = 0
    """Top-k size of the `Detail` in each round; 0 leaves it out."""

    def __post_init__(self) -> None:
        kinds = bool(self.messages) + (self.prompt is not None) + bool(self.prompt_ids)
        _check(kinds == 1, "the request has no prompt: give it messages, a prompt or prompt_ids, and only one of them")
        _check(self.gamma >= 0, f"gamma is {self.gamma}: it must be 0 (no drafting) or more")
        _check(self.max_tokens >= 1, f"max-tokens is {self.max_tokens}: it must be at least 1")
        _check(all(self.stop), "a stop string is empty: it would end every reply before its first token")
        _check(self.detail >= 0, f"detail is {self.detail}: it must be 0 (off) or more")


def _check(condition: bool, sentence: str) -> None:
    if not condition:
        raise EngineError(sentence)
