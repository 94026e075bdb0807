"""Uniform draws: uniform, independent between streams, rounds and seeds, and the same in every batch."""

import numpy as np

from specchat.engine.sampling.rng import Stream, uniform, uniforms


def test_the_values_are_splitmix64() -> None:
    """As in a reference in plain integers, checked with the first outputs of Vigna's for seed 1234567."""
    golden, mask = 0x9E3779B97F4A7C15, (1 << 64) - 1

    def mix(z: int) -> int:
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    first = [mix((1234567 + n * golden) & mask) for n in (1, 2, 3)]
    assert first == [6457827717110365317, 3203168211198807973, 9817491932198370423]
    for seed, number in ((0, 0), (-1, 3), (1 << 70, 77)):
        key = mix((mix((seed + golden) & mask) + Stream.ACCEPT * golden) & mask)
        expected = [(mix((key + ((number << 16) + n) * golden) & mask) >> 11) * 2.0**-53 for n in range(1, 6)]
        assert uniforms([seed], [number], Stream.ACCEPT, 5)[0].tolist() == expected
        assert [uniform(seed, number, Stream.ACCEPT, n) for n in range(5)] == expected


def test_a_row_draws_the_same_whatever_shares_its_batch() -> None:
    alone = uniforms([42], [7], Stream.ACCEPT, 4)[0]
    among = uniforms([1, 42, 99], [3, 7, 7], Stream.ACCEPT, 6)[1]
    assert alone.tolist() == among[:4].tolist()


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
