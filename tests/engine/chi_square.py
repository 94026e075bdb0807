"""Pearson's χ² against a known distribution, for the tests of sampling."""

import torch
from torch import Tensor


def z_score(tokens: Tensor, probabilities: Tensor) -> float:
    """How far a sample lies from a distribution, in standard deviations of χ² (Wilson-Hilferty).

    Args:
        tokens: the sample [N], int64.
        probabilities: [V]; categories expected fewer than 5 times are pooled.
    """
    n = tokens.numel()
    expected = probabilities.double() * n
    observed = torch.bincount(tokens, minlength=probabilities.numel()).double()
    assert not bool(observed[expected == 0].any()), "a token of probability 0 was drawn"
    rare = expected < 5
    observed = torch.cat([observed[~rare], observed[rare].sum()[None]])
    expected = torch.cat([expected[~rare], expected[rare].sum()[None]])
    observed, expected = observed[expected > 0], expected[expected > 0]
    df = expected.numel() - 1
    if df == 0:
        return 0.0
    chi2 = ((observed - expected).square() / expected).sum().item()
    return float(((chi2 / df) ** (1 / 3) - (1 - 2 / (9 * df))) / (2 / (9 * df)) ** 0.5)
