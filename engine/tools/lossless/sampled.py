"""Sampled check: output with speculation against the target's exact distribution.

From one context the engine samples two tokens many times, each with its own seed. The target's probabilities of these
pairs are computed exactly, p(x₁)·p(x₂ | x₁), and compared by χ². Pairs cover accepted tokens, corrections, and the
tokens drawn behind either.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from specchat.engine.events import Event
from specchat.engine.round import Round
from specchat.engine.tools.lossless.chi_square import LEAST_EXPECTED, ChiSquare, chi_square
from specchat.engine.tools.lossless.reference import Scorer

TOKENS = 3
"""Tokens requested per sample: a round never drafts the last token of a reply, so two of them can be drafts."""
FALSE_ALARM = 0.001
"""Probability of a false alarm in all tests of one run together."""
_MOST_HEADS = 32
"""Number of first tokens whose second tokens are distinguished."""
_ANY_OTHER = -1
"""Stands for all second tokens that are too rare to be counted individually."""


@dataclass(frozen=True, slots=True)
class Context:
    """Token ids of a context at which the drafter has a draft."""

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
    """Tokens tested while sampling, and those accepted."""
    accepted: int
    result: ChiSquare
    threshold: float
    """p-value below which the check fails."""

    @property
    def passed(self) -> bool:
        """Whether the sample is consistent with the target's distribution."""
        return self.result.p_value >= self.threshold


def choose_context(label: str, prompt: Sequence[int], events: Sequence[Event]) -> Context | None:
    """Context in one reply whose β is closest to one half; None if nothing was drafted.

    A draft that is always or never accepted would leave half of the algorithm untested.
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
    reference: Scorer,
    eos: Collection[int],
    temperature: float,
    threshold: float,
) -> SampledCheck:
    """Test the first two tokens of many replies against the target's distribution of them.

    Args:
        replies: events of each sample.
        eos: EOS token ids.
        threshold: p-value below which the check fails.
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
    context: Sequence[int], samples: int, reference: Scorer, eos: Collection[int], temperature: float
) -> dict[tuple[int, ...], float]:
    """Target probabilities of the test's outcomes: p(x₁)·p(x₂ | x₁) of pairs, p(x₁) of rarer first tokens and EOS."""
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
    """Outcome of the χ² test that a sampled pair counts as."""
    candidates = (pair, pair[:1], (pair[0], _ANY_OTHER))
    return next((candidate for candidate in candidates if candidate in probabilities), pair)
