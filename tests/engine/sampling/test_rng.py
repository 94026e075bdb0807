"""Uniform draws: uniform, independent between streams, rounds and seeds, and the same in every batch."""

from __future__ import annotations

import numpy as np

from specchat.engine.sampling.rng import Stream, uniforms


def test_the_values_are_splitmix64() -> None:
    # The first outputs for seed 1234567 in Vigna's reference implementation of SplitMix64.
    from specchat.engine.sampling.rng import _GOLDEN, _mix

    with np.errstate(over="ignore"):
        state = np.array([1234567], dtype=np.uint64) + np.arange(1, 4, dtype=np.uint64) * _GOLDEN
        assert _mix(state).tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_a_row_draws_the_same_whatever_shares_its_batch() -> None:
    alone = uniforms([42], [7], Stream.ACCEPT, 4)[0]
    among = uniforms([1, 42, 99], [3, 7, 7], Stream.ACCEPT, 6)[1]
    assert alone.tolist() == among[:4].tolist()


def test_draws_are_uniform_and_below_one() -> None:
    u = uniforms(range(500), [0] * 500, Stream.LAST, 200).ravel()
    assert u.min() >= 0
    assert u.max() < 1
    counts = np.histogram(u, bins=50, range=(0, 1))[0]
    chi2 = ((counts - u.size / 50) ** 2 / (u.size / 50)).sum()
    assert chi2 < 49 + 5 * (2 * 49) ** 0.5


def test_streams_rounds_and_seeds_are_uncorrelated() -> None:
    seeds = list(range(20_000))
    columns = [
        uniforms(seeds, [0] * len(seeds), Stream.DRAFT, 2),
        uniforms(seeds, [0] * len(seeds), Stream.ACCEPT, 2),
        uniforms(seeds, [1] * len(seeds), Stream.ACCEPT, 2),
        uniforms([s + 1 for s in seeds], [0] * len(seeds), Stream.ACCEPT, 2),
    ]
    correlation = np.corrcoef(np.concatenate(columns, axis=1).T)
    assert np.abs(correlation - np.eye(8)).max() < 5 / len(seeds) ** 0.5


def test_negative_and_huge_seeds_are_fine() -> None:
    u = uniforms([-1, 2**70], [0, 0], Stream.DRAFT, 1)
    assert 0 <= u.min() <= u.max() < 1
