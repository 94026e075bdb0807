"""Uniform draws: uniform, independent between streams, rounds and seeds, and the same in every batch."""

import numpy as np
import pytest

from specchat.engine.sampling.rng import Stream, uniform, uniforms


@pytest.mark.parametrize(
    ("seed", "number", "values"),
    [
        (0, 0, [0.18383979100743952, 0.6250937004946515, 0.45541761247435375]),
        (-1, 3, [0.7550885769470072, 0.11654010572002682, 0.4180840932564175]),
        (1 << 70, 77, [0.4435878169808851, 0.6644337620570079, 0.3602589394330641]),
    ],
)
def test_a_seed_draws_the_same_in_every_version(seed: int, number: int, values: list[float]) -> None:
    assert uniforms([seed], [number], Stream.ACCEPT, 3)[0].tolist() == values
    assert [uniform(seed, number, Stream.ACCEPT, n) for n in range(3)] == values


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
