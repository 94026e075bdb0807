"""The two lossless checks: greedy replies token by token, and sampled pairs of tokens by χ² tests."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from specchat.engine.backends.packed import PackedBackend
from specchat.engine.events import Event
from specchat.engine.models.load import LoadedModel
from specchat.engine.models.packed.load import PackedModel
from specchat.engine.round import Round
from specchat.engine.tools.lane_figures import first_difference
from specchat.engine.tools.runner import reply_tokens

KL_LIMIT, PERPLEXITY_LIMIT = 0.05, 0.01
"""Nats per token; relative difference."""
Reference = Callable[[Sequence[int], Sequence[int]], Tensor]
"""Scores of a reply after a context: logits [T, V], float32, from which each of its T tokens was chosen."""


def model_reference(loaded: LoadedModel) -> Reference:
    """The target, run without any of the engine's code.

    Args:
        loaded: a model that the engine does not use: the engine changes the attention of its models.
    """
    network: Any = loaded.model
    # Most networks can compute logits of the last positions only, which saves time for a large V.
    can_keep = "logits_to_keep" in inspect.signature(network.forward).parameters

    @torch.inference_mode()
    def scores(context: Sequence[int], reply: Sequence[int]) -> Tensor:
        ids = torch.tensor([[*context, *reply[:-1]]], device=network.device)
        keep = {"logits_to_keep": len(reply)} if can_keep else {}
        logits: Tensor = network(input_ids=ids, use_cache=False, **keep).logits
        return logits[0, -len(reply) :].float()

    return scores


def quantized_reference(model: PackedModel, context_length: int) -> Reference:
    """The packed target, one row at a time, without speculation.

    Args:
        model: the packed model.
        context_length: tokens of the longest prompt and reply.
    """
    runner = PackedBackend(model, 1, context_length, 1)

    def scores(context: Sequence[int], reply: Sequence[int]) -> Tensor:
        if len(context) > 1:
            runner.prefill(torch.tensor([list(context[:-1])]), [0], [0])
        return runner.forward(torch.tensor([[context[-1], *reply[:-1]]]), [0], [len(context) - 1])[0]

    return scores


def distribution(reference: Reference, context: Sequence[int], temperature: float) -> Tensor:
    """Next-token probabilities [V], float64, on the host, after a context."""
    return (reference(context, [0])[0].double() / temperature).softmax(-1).cpu()


@dataclass(frozen=True, slots=True)
class Fidelity:
    """Quantised logits against logits of the dequantised network, at every token of some replies."""

    format: str
    tokens: int
    kl: float
    """Mean Kullback-Leibler divergence from the reference, nats per token."""
    agreement: float
    """Share of the tokens where both have the same first choice."""
    perplexity: float
    """Perplexity of the replies, quantised."""
    reference_perplexity: float

    @property
    def passed(self) -> bool:
        """Whether KL divergence and perplexity are within their limits."""
        change = abs(self.perplexity / self.reference_perplexity - 1)
        return self.kl <= KL_LIMIT and change <= PERPLEXITY_LIMIT


def measure_fidelity(
    name: str, texts: Sequence[tuple[Sequence[int], Sequence[int]]], ours: Reference, theirs: Reference
) -> Fidelity:
    """Compare quantised and dequantised scores at every token of replies.

    Args:
        name: name of the quantised format.
        texts: prompts and replies, as tokens.
        ours: quantised.
        theirs: the dequantised network.
    """
    divergence = agreed = loss = reference_loss = 0.0
    for prompt, reply in texts:
        p, q = (scores(prompt, reply).log_softmax(-1) for scores in (theirs, ours))
        chosen = torch.tensor(list(reply))[:, None]
        divergence += (p.exp() * (p - q)).sum().item()
        agreed += (p.argmax(-1) == q.argmax(-1)).sum().item()
        reference_loss -= p.gather(1, chosen).sum().item()
        loss -= q.gather(1, chosen).sum().item()
    tokens = sum(len(reply) for _, reply in texts)
    perplexities = [float(torch.tensor(each / tokens).exp()) for each in (loss, reference_loss)]
    return Fidelity(name, tokens, divergence / tokens, agreed / tokens, *perplexities)


EXACT = 1e-6
"""ε of quantised passes: a token's bits depend on nothing but the tokens it attends to."""
BY_CODES = 0.1
"""ε in logits of quantised layers in transformers' modelling code, whose last bits can change an activation's code."""
TOLERANCES = {"float32": 1e-3, "float16": 0.1, "bfloat16": 0.5}
"""ε in logits per dtype: how much rounding may change the difference of two logits.

A pass over several tokens sums in another order than a pass over one. In bfloat16 a logit of 16 to 32 is a multiple of
1/8, so two close tokens may tie or swap.
"""
TOKENS = 3
"""Tokens requested per sample: a round never drafts the last token of a reply, so two of them can be drafts."""
FALSE_ALARM = 0.001
"""Probability of a false alarm in all tests of one run together."""
_MOST_HEADS = 32
"""Number of first tokens whose second tokens are distinguished."""
_ANY_OTHER = -1
"""Outcome for all second tokens that are too rare to be counted individually."""
LEAST_EXPECTED = 5.0
"""Outcomes with smaller expected counts are pooled, as the statistic would not be χ²-distributed."""
Outcome = TypeVar("Outcome", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Divergence:
    """First difference of a reply from the one without speculation."""

    prompt: str
    """Prompt set and number, such as chat 3."""
    position: int
    """Tokens of the reply before the difference."""
    plain: int | None
    """Token without speculation; None if that reply had ended."""
    speculative: int | None
    top2_gap: float
    """Difference of the target's two largest logits there."""


@dataclass(frozen=True, slots=True)
class GreedyCheck:
    """Result of one drafter over all prompts."""

    drafter: str
    prompts: int
    tokens: int
    """Tokens emitted with this drafter, all checked."""
    divergences: tuple[Divergence, ...]
    worst_deficit: float
    """Largest deficit of an emitted token's logit to the target's largest."""
    tolerance: float
    """ε, in logits."""

    @property
    def passed(self) -> bool:
        """Whether all differences are within the tolerance."""
        gaps = [divergence.top2_gap for divergence in self.divergences]
        return max([self.worst_deficit, *gaps]) < self.tolerance


def check_greedy(
    drafter: str,
    prompts: Sequence[tuple[str, Sequence[int]]],
    plain: Sequence[Sequence[int]],
    speculative: Sequence[Sequence[int]],
    reference: Reference,
    tolerance: float,
) -> GreedyCheck:
    """Compare the replies of a drafter with plain decoding, and each token with the target's own choice.

    Args:
        prompts: label and token ids of each.
        plain: replies without speculation, in the same order.
        speculative: replies with the drafter.
        tolerance: ε, in logits.
    """
    divergences: list[Divergence] = []
    worst = 0.0
    for (label, prompt), ours, theirs in zip(prompts, plain, speculative, strict=True):
        scores = reference(prompt, theirs)
        top2 = scores.topk(2).values
        chosen = scores.gather(1, scores.new_tensor(theirs).long()[:, None])[:, 0]
        worst = max(worst, (top2[:, 0] - chosen).max().item())
        at = first_difference(ours, theirs)
        if at is not None:
            first, second = top2[min(at, len(theirs) - 1)].tolist()
            plain_token, token = (next(iter(reply[at : at + 1]), None) for reply in (ours, theirs))
            divergences.append(Divergence(label, at, plain_token, token, first - second))
    tokens = sum(map(len, speculative))
    return GreedyCheck(drafter, len(prompts), tokens, tuple(divergences), worst, tolerance)


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
    tokens = [*prompt, *reply_tokens(events)]
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
    """Test the first two tokens of many replies against the target's distribution of them.

    The target's probabilities of the pairs are computed exactly, p(x₁)·p(x₂ | x₁). Pairs cover accepted tokens,
    corrections, and the tokens drawn after either.

    Args:
        replies: events of each sample.
        eos: EOS token ids.
        threshold: p-value below which the check fails.
    """
    rounds = [event for events in replies for event in events if isinstance(event, Round)]
    pairs = [tuple(reply_tokens(events)[:2]) for events in replies]
    probabilities = _pair_probabilities(context.tokens, len(pairs), reference, eos, temperature)
    tested, accepted = sum(each.tested for each in rounds), sum(each.accepted for each in rounds)
    result = chi_square((_outcome(pair, probabilities) for pair in pairs), probabilities)
    return SampledCheck(drafter, context.label, len(pairs), tested, accepted, result, threshold)


def _pair_probabilities(
    context: Sequence[int], samples: int, reference: Reference, eos: Collection[int], temperature: float
) -> dict[tuple[int, ...], float]:
    """Target probabilities of the test's outcomes: p(x₁)·p(x₂ | x₁) of pairs, p(x₁) of rarer first tokens and EOS."""
    first = distribution(reference, context, temperature)
    likely = {token: first[token].item() for token in first.topk(min(_MOST_HEADS, len(first))).indices.tolist()}
    heads = [token for token, p in likely.items() if p * samples >= 2 * LEAST_EXPECTED and token not in eos]
    probabilities: dict[tuple[int, ...], float] = {
        (token,): p for token, p in likely.items() if token not in heads and p * samples >= LEAST_EXPECTED
    }
    for token in heads:
        joint = distribution(reference, [*context, token], temperature) * likely[token]
        often = (joint * samples >= LEAST_EXPECTED).nonzero()[:, 0].tolist()
        probabilities |= {(token, second): joint[second].item() for second in often}
        probabilities[token, _ANY_OTHER] = max(0.0, likely[token] - joint[often].sum().item())
    return probabilities


def _outcome(pair: tuple[int, ...], probabilities: Mapping[tuple[int, ...], float]) -> tuple[int, ...]:
    """Outcome of the χ² test that a sampled pair counts as."""
    candidates = (pair, pair[:1], (pair[0], _ANY_OTHER))
    return next((candidate for candidate in candidates if candidate in probabilities), pair)


@dataclass(frozen=True, slots=True)
class ChiSquare:
    """Result of one test."""

    statistic: float
    degrees: int
    """Degrees of freedom: categories - 1; 0 if one outcome is nearly certain or all are rare."""
    p_value: float
    """Probability of a sample at least this extreme under the distribution."""


def chi_square(sample: Iterable[Outcome], probabilities: Mapping[Outcome, float]) -> ChiSquare:
    """Test whether a sample comes from a distribution.

    Args:
        sample: outcomes; those without a probability count as the remainder.
        probabilities: of single outcomes; their sum is at most 1, and the rest is the remainder's.
    """
    counts = Counter(outcome if probabilities.get(outcome, 0.0) > 0 else None for outcome in sample)
    total = counts.total()
    expected = {outcome: total * p for outcome, p in probabilities.items() if total * p >= LEAST_EXPECTED}
    cells = [(counts[outcome], often) for outcome, often in expected.items()]
    others, pooled = total - sum(count for count, _ in cells), max(0.0, total - sum(expected.values()))
    surprise = 1.0
    if pooled >= LEAST_EXPECTED:
        cells.append((others, pooled))
    else:  # too rare for a separate category; tested separately, as the target may never emit it
        surprise = _at_least(others, pooled)
    degrees = max(0, len(cells) - 1)
    # Conditional on the number of rare outcomes, the others follow their own probabilities.
    scale = sum(count for count, _ in cells) / sum(often for _, often in cells) if cells else 1.0
    statistic = sum((count - often * scale) ** 2 / (often * scale) for count, often in cells if scale)
    # P(χ² ≥ statistic) with `degrees` degrees of freedom.
    halves = torch.tensor([degrees / 2, statistic / 2], dtype=torch.float64)
    chance = float(torch.special.gammaincc(*halves)) if degrees and scale else 1.0
    # Two tests of one sample: Bonferroni doubles the smaller p-value.
    return ChiSquare(statistic, degrees, min(1.0, 2 * min(chance, surprise)) if surprise < 1 else chance)


def _at_least(count: int, expected: float) -> float:
    """Probability of at least `count` events under a Poisson distribution with mean `expected`."""
    if count == 0:
        return 1.0
    return float(torch.special.gammainc(torch.tensor(float(count)).double(), torch.tensor(expected).double()))
