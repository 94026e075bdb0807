"""Trees that grow: exact whatever they are grown by."""

from collections.abc import Sequence

import torch

from specchat.engine import Request, Sampling
from specchat.engine.decoding.acceptance import Drafted, accept
from specchat.engine.decoding.draft import Budget, Draft, RowOrder, Support
from specchat.engine.decoding.tree_growth import EXPECTED, grow
from specchat.engine.decoding.tree_mask import TreeMask, TreePlace
from specchat.engine.kernels.drafters import Scores
from specchat.engine.sampling.sampler import SamplingRows
from tests.engine.decoding.test_acceptance import tokens_of
from tests.engine.rows import row_of
from tests.engine.sampled import z_score

CPU = torch.device("cpu")
WORDS = 6


class Text:
    """Random distributions of what follows every text of up to three tokens, of a target and of its drafter."""

    def __init__(self) -> None:
        make = torch.Generator().manual_seed(3)
        self._sizes = [WORDS**n for n in range(4)]
        self.p = [(2 * torch.randn(n, WORDS, generator=make)).softmax(-1) for n in self._sizes]
        self.logits = [p.log() + 1.2 * torch.randn(p.shape, generator=make) for p in self.p]

    @staticmethod
    def place(path: Sequence[int]) -> int:
        return int(sum(token * WORDS**i for i, token in enumerate(path)))


def grown(text: Text, seed: int, budget: Budget) -> Draft:
    """One tree, drawn."""
    request = Request("r", prompt_ids=(1,), sampling=Sampling(temperature=1.0))
    row = row_of([1], request=request, seed=seed)
    drafted: dict[int, int] = {}

    def scores(paths: Sequence[Sequence[int]]) -> Scores:
        logits = torch.stack([text.logits[len(path)][text.place(path)] for path in paths])
        best = logits.softmax(-1).topk(4)
        return Scores(logits, best.indices.int().numpy(), best.values.numpy())

    def expand(places: Sequence[TreePlace], _: Sequence[int]) -> Scores:
        drafted.update({place.column: place.token for place in places})
        return scores([[drafted[column] for column in (*place.path, place.column)] for place in places])

    return grow([RowOrder(row, 3, budget)], scores([[]]), expand, range(WORDS))[0][0]


def test_what_comes_out_has_the_targets_distribution() -> None:
    text, budget, trials = Text(), Budget([0.1 * n for n in range(18)], 0.05, EXPECTED), 1200
    made = [grown(text, seed, budget) for seed in range(trials)]
    trees = [draft.tree for draft in made]
    sizes = {len(tree) for tree in trees}
    assert len(sizes) > 1, "the drafts must differ for this to show anything"
    longest = max(sizes)
    drafted = torch.zeros(trials, longest, dtype=torch.long)
    q = torch.zeros(trials, longest + 1, WORDS)
    p = torch.zeros(trials, longest + 1, WORDS)
    for i, (draft, tree) in enumerate(zip(made, trees, strict=True)):
        tokens = draft.tokens
        drafted[i, : len(tree)] = torch.tensor(tokens)
        for node in set(tree.parents):
            q[i, node] = draft.q[node]
        for node in range(len(tree) + 1):
            path = [tokens[n - 1] for n in tree.path(node)]
            p[i, node] = text.p[len(path)][text.place(path)]
    draws = torch.Generator().manual_seed(9)
    mask = TreeMask.fresh(trees, longest + 1, CPU)
    u = torch.rand(trials, len(mask.widths), 4, dtype=torch.float64, generator=draws)
    u_own = torch.rand(trials, len(mask.widths) + 1, dtype=torch.float64, generator=draws)
    support = Support.of(torch.arange(WORDS), WORDS)
    batch = Drafted(drafted, mask, q, support, torch.ones(trials, dtype=torch.bool))
    settings = SamplingRows.of([Sampling(temperature=1.0)] * trials, CPU)
    verdict = accept(p.log(), batch, settings, u, u_own)
    emitted = tokens_of(drafted, verdict)
    assert abs(z_score(emitted[:, 0], text.p[0][0])) < 4
    for word in range(WORDS):
        behind = emitted[(emitted[:, 0] == word) & (emitted[:, 1] >= 0), 1]
        if len(behind) > 100:
            assert abs(z_score(behind, text.p[1][word])) < 4
