"""Sampled output with speculation against the target's exact distribution.

From one context the engine samples two tokens many times, each with its own seed. The target's own probabilities of
those pairs are computed exactly, p(x₁)·p(x₂ | x₁), and the two are compared by χ². Pairs cover an accepted draft, a
correction, and what is drawn behind either of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from engine.events import Event, Round
from engine.verification.chi_square import LEAST_EXPECTED, ChiSquare, chi_square
from engine.verification.reference import Reference

TOKENS = 3
"""Asked for at each sample: a round never drafts the last token of a reply, so two of them can be drafts."""
FALSE_ALARM = 0.001
"""The chance that all the tests of one run together raise an alarm although nothing is wrong."""
_MOST_HEADS = 32
"""First tokens whose continuations are told apart."""
_ANY_OTHER = -1
"""Stands for all second tokens that are too rare to be counted one by one."""


@dataclass(frozen=True, slots=True)
class Context:
    """A place in a text at which the drafter has something to offer."""

    label: str
    tokens: tuple[int, ...]
    beta: float
    """Σ min(p, q) of its first drafted token there."""


@dataclass(frozen=True, slots=True)
class SampledCheck:
    """One drafter at one context."""

    drafter: str
    context: str
    samples: int
    tested: int
    """Drafted tokens that were judged while sampling, and of these the accepted."""
    accepted: int
    result: ChiSquare
    threshold: float
    """A p-value below this is an alarm."""

    @property
    def passed(self) -> bool:
        """Whether the sample may well come from the target's distribution."""
        return self.result.p_value >= self.threshold


def choose_context(label: str, prompt: Sequence[int], events: Sequence[Event]) -> Context | None:
    """The place in one reply at which the target was least decided about the draft; None where nothing was drafted.

    A draft that is always accepted, or never, would leave half of the algorithm untested.
    """
    rounds = [event for event in events if isinstance(event, Round) and event.beta]
    if not rounds:
        return None
    best = min(rounds, key=lambda event: abs(event.beta[0] - 0.5))
    tokens = [*prompt]
    for event in events:
        if isinstance(event, Round):
            tokens += event.emitted
    return Context(f"{label}, token {best.position - len(prompt)}", tuple(tokens[: best.position]), best.beta[0])


def check_sampled(
    drafter: str,
    context: Context,
    replies: Sequence[Sequence[Event]],
    reference: Reference,
    eos: Collection[int],
    temperature: float,
    threshold: float,
) -> SampledCheck:
    """Compare the first two tokens of many replies with the target's distribution of them.

    Args:
        replies: the events of each sample.
        eos: tokens that end a reply; nothing follows them.
        threshold: the p-value below which it is an alarm.
    """
    rounds = [[event for event in events if isinstance(event, Round)] for events in replies]
    pairs = [tuple(token for each in reply for token in each.emitted)[:2] for reply in rounds]
    probabilities = _pair_probabilities(context.tokens, len(pairs), reference, eos, temperature)
    return SampledCheck(
        drafter=drafter,
        context=context.label,
        samples=len(pairs),
        tested=sum(each.tested for reply in rounds for each in reply),
        accepted=sum(each.accepted for reply in rounds for each in reply),
        result=chi_square((_outcome(pair, probabilities) for pair in pairs), probabilities),
        threshold=threshold,
    )


def _pair_probabilities(
    context: Sequence[int], samples: int, reference: Reference, eos: Collection[int], temperature: float
) -> dict[tuple[int, ...], float]:
    """p(x₁)·p(x₂ | x₁) of the pairs with a likely first token, p(x₁) of single ones behind which nothing is told."""
    first = reference.distributions([context], temperature)[0]
    likely = {token: first[token].item() for token in first.topk(min(_MOST_HEADS, len(first))).indices.tolist()}
    heads = [token for token, p in likely.items() if p * samples >= 2 * LEAST_EXPECTED and token not in eos]
    probabilities: dict[tuple[int, ...], float] = {
        (token,): p for token, p in likely.items() if token not in heads and p * samples >= LEAST_EXPECTED
    }
    if heads:
        behind = reference.distributions([[*context, token] for token in heads], temperature)
        for token, row in zip(heads, behind, strict=True):
            joint = row * likely[token]
            often = (joint * samples >= LEAST_EXPECTED).nonzero()[:, 0].tolist()
            probabilities |= {(token, follower): joint[follower].item() for follower in often}
            probabilities[token, _ANY_OTHER] = max(0.0, likely[token] - joint[often].sum().item())
    return probabilities


def _outcome(pair: tuple[int, ...], probabilities: Mapping[tuple[int, ...], float]) -> tuple[int, ...]:
    """What a sampled pair counts as."""
    candidates = (pair, pair[:1], (pair[0], _ANY_OTHER))
    return next((candidate for candidate in candidates if candidate in probabilities), pair)
