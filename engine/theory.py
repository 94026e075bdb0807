"""What speculative decoding should gain, by Leviathan et al. 2023, section 3. Plain numbers in, plain numbers out.

Throughout, α is the acceptance rate (0 to 1), γ the draft length, c the time of one draft step over the time of one
target pass, and ĉ the same ratio in arithmetic operations. The paper assumes that a pass over γ + 1 tokens takes as
long as a pass over one, and that acceptance is independent from token to token.

Every function raises ValueError for an α outside [0, 1], a negative γ, or a negative cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

LONGEST = 64
"""Draft lengths that `optimal_gamma` looks at by default; with c = 0 and α = 1 there is no best one."""


def expected_tokens(alpha: float, gamma: float) -> float:
    """Tokens that one round emits on average, the correction or bonus included (equation 1): 1 to γ + 1."""
    _check(alpha, gamma)
    if alpha == 1:
        return gamma + 1
    return float((1 - alpha ** (gamma + 1)) / (1 - alpha))


def speedup(alpha: float, gamma: float, c: float) -> float:
    """How many times faster than one token per target pass (Theorem 3.8)."""
    _check(alpha, gamma, c)
    return expected_tokens(alpha, gamma) / (gamma * c + 1)


def speedup_of_rounds(alpha: float, rounds: Mapping[int, int], c: float) -> float:
    """Theorem 3.8 where rounds differ in length: expected tokens of all rounds over the time of all rounds.

    With one length only this is `speedup`. A drafter that often has nothing to offer, or that adapts γ, is not
    described by the γ it was asked for.

    Args:
        rounds: how many rounds drafted each length; not empty.
    """
    tokens = expected_of_rounds(alpha, rounds)
    passes = sum(count * (gamma * c + 1) for gamma, count in rounds.items())
    _check(alpha, 0, c)
    return tokens / passes


def operations(alpha: float, gamma: float, c_hat: float) -> float:
    """How many times the arithmetic operations of plain decoding are done per token (Theorem 3.11)."""
    _check(alpha, gamma, c_hat)
    return (gamma * c_hat + gamma + 1) / expected_tokens(alpha, gamma)


def expected_of_rounds(alpha: float, rounds: Mapping[int, int]) -> float:
    """Equation 1 summed over rounds that differ in length.

    Args:
        rounds: how many rounds drafted each length.
    """
    return sum(count * expected_tokens(alpha, gamma) for gamma, count in rounds.items())


def alpha_of(betas: Sequence[float]) -> float:
    """The estimate of α from β = Σ min(p, q) of each tested position (Corollary 3.6); not for an empty sequence."""
    if not betas:
        raise ValueError("no position was tested: there is no acceptance rate")
    return sum(betas) / len(betas)


def least_gain(alpha: float, c: float) -> float:
    """What the best γ gains at least (Corollary 3.9); above 1 exactly where α > c, else drafting cannot pay."""
    _check(alpha, 1, c)
    return (1 + alpha) / (1 + c)


def optimal_gamma(alpha: float, c: float, longest: int = LONGEST) -> int:
    """The γ from 0 to `longest` with the largest `speedup` (section 3.5), the smallest if several; 0: do not draft."""
    return max(range(longest + 1), key=lambda gamma: speedup(alpha, gamma, c))


def _check(alpha: float, gamma: float, cost: float = 0.0) -> None:
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha is {alpha:g}: it must be from 0 to 1")
    if gamma < 0:
        raise ValueError(f"gamma is {gamma:g}: it must be 0 or more")
    if cost < 0:
        raise ValueError(f"the cost ratio is {cost:g}: it must be 0 or more")
