"""Clusters of a head's vocabulary, so that a step scores the likeliest tokens alone.

As in the assistants of Gemma 4 a small matrix scores clusters, and tokens of the likeliest ones are scored. Clusters
are balanced k-means of the output embeddings; the matrix is fitted on the head's own outputs, so that its softmax comes
near the share that the head's distribution has in each cluster.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from specchat.engine.drafters.head.network import DraftHead

SIZE = 32
"""Tokens of a cluster."""
FEWEST = 96
"""Clusters that a vocabulary needs: fewer tokens are scored as fast without."""
_MEANS = 8
"""Rounds of k-means."""
_NEAREST = 64
"""Clusters that a token is put in as long as there is room; then any."""
_UPDATES, _BATCH, _RATE = 400, 384, 2e-3


def can_be_clustered(tokens: int) -> bool:
    """Whether a vocabulary of this number of tokens makes clusters that pay."""
    return tokens % SIZE == 0 and tokens // SIZE >= FEWEST


def cluster(head: DraftHead, scores: Tensor, outputs: Tensor) -> tuple[DraftHead, Tensor]:
    """A copy of a head with clusters, and the order [V'] of its vocabulary in which they follow each other.

    Args:
        head: with or without clusters.
        scores: [V', d], the target's output embeddings of its vocabulary.
        outputs: [N, d], what the head has put out.
    """
    order = find_clusters(scores)
    matrix = fit_clusters(scores[order], outputs)
    clustered = DraftHead(replace(head.shape, clusters=len(matrix))).to(matrix.device)
    clustered.load_state_dict({**head.state_dict(), "clusters.weight": matrix})
    return clustered, order


def find_clusters(scores: Tensor) -> Tensor:
    """The order [V'] in which rows of output embeddings [V', d] are cluster by cluster, each ascending."""
    count = len(scores) // SIZE
    centred = (scores - scores.mean(0)).float()
    centres = centred[torch.randperm(len(centred), device=centred.device)[:count]]
    for _ in range(_MEANS):
        chosen = _balanced(functional.normalize(centred, dim=1) @ functional.normalize(centres, dim=1).T)
        centres = torch.zeros_like(centres).index_add_(0, chosen, centred) / SIZE
    return chosen.argsort(stable=True)


def _balanced(likeness: Tensor) -> Tensor:
    """A cluster [V'] for each token, `SIZE` tokens in each; the most alike [V', clusters] choose first."""
    values, nearest = likeness.topk(min(_NEAREST, likeness.shape[1]), dim=1)
    order = values.flatten().argsort(descending=True)
    tokens, clusters = (order // nearest.shape[1]).tolist(), nearest.flatten()[order].tolist()
    chosen, room = [-1] * len(likeness), [SIZE] * likeness.shape[1]
    for token, cluster in zip(tokens, clusters, strict=True):
        if chosen[token] < 0 and room[cluster]:
            chosen[token] = cluster
            room[cluster] -= 1
    left = [cluster for cluster, count in enumerate(room) for _ in range(count)]
    return torch.tensor([cluster if cluster >= 0 else left.pop() for cluster in chosen], device=likeness.device)


def fit_clusters(scores: Tensor, outputs: Tensor) -> Tensor:
    """The matrix [clusters, d] that scores clusters.

    Args:
        scores: [V', d], output embeddings, cluster by cluster.
        outputs: [N, d], what the head has put out.
    """
    scores, outputs = scores.float(), outputs.float()
    matrix = (scores - scores.mean(0)).view(-1, SIZE, scores.shape[1]).mean(1).requires_grad_(True)
    optimiser = torch.optim.Adam([matrix], lr=_RATE)
    with torch.enable_grad():
        for update in range(_UPDATES):
            optimiser.param_groups[0]["lr"] = _RATE * (1 - update / _UPDATES)
            drawn = outputs[torch.randint(len(outputs), (_BATCH,), device=outputs.device)]
            with torch.no_grad():
                shares = (drawn @ scores.T).softmax(-1).view(len(drawn), -1, SIZE).sum(-1)
            loss = -(shares * (drawn @ matrix.T).log_softmax(-1)).sum(-1).mean()
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    return matrix.detach()
