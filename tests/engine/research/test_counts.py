"""What is counted, and what tables say of it as networks."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from specchat.engine.research.tables import MOST, BigramNetwork, Counts, UnigramNetwork
from specchat.engine.tools.distill.tables import TokenCounter

CPU = torch.device("cpu")


def counted(*pieces: list[int], vocabulary: int = 8) -> Counts:
    counter = TokenCounter(vocabulary)
    for piece in pieces:
        counter.add(np.array(piece, dtype=np.int64))
    return counter.counts()


def behind(network: BigramNetwork | UnigramNetwork, token: int) -> Tensor:
    return network.forward(torch.tensor([[7, token]]), [0], [0])[0, 0].softmax(-1)


def test_tokens_and_pairs_of_all_pieces_are_counted() -> None:
    counts = counted([1, 2, 1, 3], [1, 3, 0])
    assert counts.single.tolist() == [1, 3, 1, 2, 0, 0, 0, 0]
    assert counts.tokens == 7
    assert counts.starts.tolist() == [0, 0, 2, 3, 4, 4, 4, 4, 4]
    assert list(zip(counts.following.tolist(), counts.times.tolist(), strict=True)) == [(3, 2), (2, 1), (1, 1), (0, 1)]
    counts.check()


def test_a_table_says_how_often_each_token_followed() -> None:
    bigram = BigramNetwork(counted([1, 2, 1, 3], [1, 3, 0]), 10, CPU)
    assert behind(bigram, 1).tolist() == pytest.approx([0, 0, 1 / 3, 2 / 3, 0, 0, 0, 0, 0, 0])
    assert behind(bigram, 3).tolist() == [1, 0, 0, 0, 0, 0, 0, 0, 0, 0]
    # Never seen before another token: the most frequent tokens of all.
    for unseen in (0, 5, 9):
        assert behind(bigram, unseen).tolist() == pytest.approx([1 / 7, 3 / 7, 1 / 7, 2 / 7, 0, 0, 0, 0, 0, 0])
    assert bigram.likeliest == [1, 3, 1, 0, 1, 1, 1, 1, 1, 1]


def test_single_tokens_are_the_same_behind_all() -> None:
    unigram = UnigramNetwork(counted([1, 2, 1, 3], [1, 3, 0]), 10, CPU)
    for token in range(8):
        assert behind(unigram, token).tolist() == pytest.approx([1 / 7, 3 / 7, 1 / 7, 2 / 7, 0, 0, 0, 0, 0, 0])
    assert set(unigram.likeliest) == {1}


def test_the_likeliest_on_the_host_is_the_likeliest_of_the_network() -> None:
    """A row drafts the same whatever rides along; ties included."""
    tokens = np.random.default_rng(0).integers(0, 60, 4000)
    counts = counted(tokens.tolist(), vocabulary=64)
    for network in (BigramNetwork(counts, 64, CPU), UnigramNetwork(counts, 64, CPU)):
        whole = network.forward(torch.arange(64)[:, None], [0] * 64, [0] * 64)[:, 0]
        assert whole.argmax(-1).tolist() == network.likeliest
    assert int(counts.starts.diff().max()) == MOST


@pytest.mark.parametrize(
    ("spoilt", "sentence"),
    [
        ({"starts": torch.tensor([0, 1])}, "do not fit together"),
        ({"single": torch.ones(8)}, "do not fit together"),
        ({"times": torch.ones(9, dtype=torch.int32)}, "do not fit together"),
        ({"starts": torch.tensor([0, 2, 1, 3, 4, 4, 4, 4, 4])}, "not in order"),
        ({"following": torch.tensor([3, 2, 1, 8], dtype=torch.int32)}, "not in its vocabulary"),
        ({"times": torch.tensor([1, 1, 0, 1], dtype=torch.int32)}, "counts that are none"),
        ({"single": torch.zeros(8, dtype=torch.int64)}, "counts that are none"),
    ],
)
def test_what_is_no_table_is_told(spoilt: dict[str, Tensor], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        replace(counted([1, 2, 1, 3], [1, 3, 0]), **spoilt).check()
