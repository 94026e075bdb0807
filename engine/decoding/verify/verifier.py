"""Verifier: judges the drafts of a batch by the target's logits, chains together and trees together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from specchat.engine.backends.region import Regions
from specchat.engine.backends.runner import Runner
from specchat.engine.decoding.proposal import Proposal, Support
from specchat.engine.decoding.verify.chains import DETAILED, ChainShape, VerifiedChains, chain_region
from specchat.engine.decoding.verify.outcome import Verified
from specchat.engine.decoding.verify.top_logprobs import MOST
from specchat.engine.decoding.verify.tree_shape import TreeShape, drafted_widths
from specchat.engine.decoding.verify.trees import VerifiedTrees, tree_region
from specchat.engine.device.padding import CAPTURED
from specchat.engine.device.to_device import to_device
from specchat.engine.sampling.penalties import Penalties
from specchat.engine.sampling.sampling_rows import ANY, coarse_flags
from specchat.engine.sequence.sequence import SequenceState

_CHAIN, _DRAWN, _CERTAIN, _MERGED = range(4)
"""What is verified together."""
_MOST = 1024
"""Shapes of verdicts that are kept as graphs."""


class Verifier:
    """Judges what the target has scored; on a GPU by one CUDA graph per shape.

    Args:
        target: runner of the target model.
        penalties: bias and penalties of the rows.
    """

    def __init__(self, target: Runner, penalties: Penalties) -> None:
        self._cache = target.cache
        self._penalties = penalties
        self._regions: Regions | None = None
        if target.graph_runner is not None:
            self._regions = Regions(target.graph_runner.pool, target.cache.slots, _MOST)

    @property
    def bytes(self) -> int:
        """Memory of what graphs read."""
        return self._regions.bytes if self._regions else 0

    @torch.inference_mode()
    def capture(self, logits: Tensor, support: Support | None, *, merged: bool = False) -> None:
        """Capture the verdicts that the set-up can meet, so that no reply waits for one.

        Args:
            logits: [B, T, V], some of the target's.
            support: what drafters of this set-up draw trees from; None if none does.
            merged: whether one of them merges trees.
        """
        if self._regions is None:
            return
        for rows in reversed(self._regions.counts):
            kinds = [*((flags, 0) for flags in coarse_flags(rows)), (ANY, MOST)]
            for flags, k in kinds:
                widths = DETAILED if k else CAPTURED
                for width in reversed(widths):
                    like = logits[:, :1].expand(-1, width, -1)
                    chain_region(self._regions, ChainShape.of(rows, like, flags, details=k))
                if support is None:
                    continue
                for each in drafted_widths():
                    shape = TreeShape.of(rows, logits, flags, each, details=k)
                    tree_region(self._regions, shape, support, self._cache)
                    sampled, greedy = not flags.all_greedy, flags.all_greedy or k > 0
                    # Where drafts are merged, what greedy rows offer is certain.
                    for by_trials in ([True] * sampled + [False] * greedy) * merged:
                        shape = TreeShape.of(rows, logits, flags, each, details=k, merged=by_trials)
                        tree_region(self._regions, shape, None, self._cache)

    def judge(
        self, rows: Sequence[SequenceState], logits: Tensor, proposal: Proposal, gammas: Sequence[int]
    ) -> list[Verified]:
        """Verify all chains of the batch together, and all trees that were drawn, were not, or were merged.

        Args:
            rows: B.
            logits: [B, T, V], the target's.
            proposal: their drafts.
            gammas: [B], draft lengths asked for.
        """
        adjustment = self._penalties.of(rows)
        if adjustment is not None:
            logits = adjustment.apply(logits, proposal.tokens)
        trees = proposal.trees or [None] * len(rows)
        of_trees = [_CERTAIN if i in proposal.certain else _DRAWN for i in range(len(rows))]
        if proposal.trials:
            of_trees = [kind if each is None else _MERGED for kind, each in zip(of_trees, proposal.trials, strict=True)]
        kinds = [_CHAIN if tree is None else kind for tree, kind in zip(trees, of_trees, strict=True)]
        judged: list[Verified] = []
        for kind in dict.fromkeys(kinds):
            mine = [i for i, each in enumerate(kinds) if each == kind]
            whole = len(mine) == len(rows)
            part = proposal if whole else proposal.only(mine)
            seen = logits if whole else logits[to_device(mine, logits.device), : part.tokens.shape[1] + 1]
            own, asked = [rows[i] for i in mine], [gammas[i] for i in mine]
            if kind == _CERTAIN:
                part = replace(part, tree_q=None, support=None)
            if part.trials and kind != _MERGED:
                part = replace(part, trials=None)
            if kind == _CHAIN:
                judged.append(VerifiedChains(mine, own, seen, part, asked, self._regions))
            else:
                judged.append(VerifiedTrees(mine, own, seen, part, asked, self._cache, self._regions))
        return judged


@torch.inference_mode()
def along(judged: Sequence[Verified], tapped: Tensor) -> Tensor:
    """Gather hidden states [B, γ+1, n] of each row's last token and what was accepted from states [B, T, n]."""
    trees, device = [part for part in judged if isinstance(part, VerifiedTrees)], tapped.device
    if not trees:
        return tapped
    path = trees[0].path[:, : tapped.shape[1] - 1]
    if len(path) < len(tapped):
        path = torch.arange(1, tapped.shape[1], device=device).repeat(len(tapped), 1)  # of chains
        for part in trees:
            mine = part.path[:, : tapped.shape[1] - 1]
            path[to_device(part.mine, device), : mine.shape[1]] = mine
    places = torch.nn.functional.pad(path, (1, 0))
    return tapped[torch.arange(len(path), device=device)[:, None], places]
