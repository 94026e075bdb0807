"""Expected speedup and tokens per round of speculative decoding (Leviathan et al. 2023, section 3).

α is the acceptance rate (0 to 1), γ the draft length, c the time of one draft step over the time of one target pass.
The paper assumes that a pass over γ + 1 tokens takes as long as a pass over one, and that acceptance is independent
from token to token.
"""

from __future__ import annotations

from collections.abc import Mapping


def expected_tokens(alpha: float, gamma: float) -> float:
    """Mean tokens emitted by one round, the correction or bonus included: 1 to γ + 1 (equation 1)."""
    return gamma + 1 if alpha == 1 else float((1 - alpha ** (gamma + 1)) / (1 - alpha))


def expected_of_rounds(alpha: float, rounds: Mapping[int, float]) -> float:
    """Equation 1 summed over rounds of different draft lengths.

    Args:
        rounds: draft length to count (or weight) of rounds.
    """
    return sum(count * expected_tokens(alpha, gamma) for gamma, count in rounds.items())


def speedup_of_rounds(alpha: float, rounds: Mapping[int, float], c: float) -> float:
    """Speedup over one token per target pass (Theorem 3.8), for rounds of different draft lengths.

    It is the expected number of tokens over the time in target passes, summed over all rounds; with one length it is
    the theorem. Actual lengths matter for drafters that often propose fewer tokens or adapt γ.

    Args:
        rounds: draft length to count (or weight) of rounds; not empty.
    """
    return expected_of_rounds(alpha, rounds) / sum(count * (gamma * c + 1) for gamma, count in rounds.items())


def speedup(alpha: float, gamma: int, c: float) -> float:
    """Speedup over one token per target pass with one draft length (Theorem 3.8)."""
    return speedup_of_rounds(alpha, {gamma: 1}, c)


def operations(alpha: float, gamma: int) -> float:
    """Arithmetic operations of the target per token, relative to plain decoding (Theorem 3.11 with ĉ = 0)."""
    return (gamma + 1) / expected_tokens(alpha, gamma)


def optimal_gamma(alpha: float, c: float, limit: int) -> int:
    """The draft length up to `limit` with the largest speedup (section 3.5); 0 where drafting does not pay."""
    return max(range(limit + 1), key=lambda gamma: (speedup(alpha, gamma, c), -gamma))
