"""The kind eagle: a head of one layer that reads its own output from the second step on (Li et al. 2024, 2025).

Its initial layer is a copy of one of the target's last layers, and the three linear maps into it are the least-squares
estimate of that layer's input: the residual stream at the next token, from the hidden states at this one and the
embedding of the next. Random weights would first have to learn what the target knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from specchat.engine.drafters.head.folder import CARD, WEIGHTS, HeadCard, read_head, save_head
from specchat.engine.drafters.head.network import DraftHead, HeadShape
from specchat.engine.models.load import LoadedModel
from specchat.engine.tools.distill.text import Conversation
from specchat.engine.tools.distill.trainer import Batch, Draft, acceptance_loss, last_state, positions_loss, rounded
from specchat.engine.tools.distill.work_folder import Distilled, StartingDraft, other_sizes

DEPTH = 4
"""Draft steps that the head is trained over."""
_SHARE = 0.3
"""Fraction of positions of a batch that are trained beyond the first step."""
_NOISE = 0.1
"""Standard deviation of the random factor on hidden states in training, against overfitting."""
_OUTPUTS = 100_000
"""Outputs that clusters are fitted on."""
_DAMPING = 1e-2
"""Ridge term, as a fraction of the mean diagonal."""
_OUTLIER = 5.0
"""Positions whose hidden state is this many times the median norm (attention sinks) are left out of the fit."""
_SPREAD = 0.02
"""Standard deviation of weights without a better initialisation."""


class Eagle(Draft):
    """A draft head.

    Raises:
        EngineError: the target's architecture is not supported by draft heads.
    """

    noun = "a draft head"
    files = (WEIGHTS, CARD)
    four_bits = True

    def __init__(self, model: LoadedModel) -> None:
        super().__init__(model)
        self.shape = head_shape(model.model, model.name)
        self.taps = self.shape.taps

    def start(self, folder: Path) -> StartingDraft:
        """Load a finished draft head, to be trained further."""
        card, head, vocabulary = read_head(folder, self.model)
        # The same ε differs in its last digits between a GGUF file, which has 32 bits of it, and a config.json.
        if replace(card.shape, epsilon=self.shape.epsilon, clusters=0) != self.shape:
            raise other_sizes(folder, self.model.name)
        weights = {name: weight for name, weight in head.state_dict().items() if not name.startswith("clusters")}
        return StartingDraft(weights, vocabulary, card.tokens, card.steps, card.minutes)

    def new_network(self, text: Iterable[Conversation] | None) -> nn.Module:
        """A head that is fitted on text."""
        return DraftHead(self.shape) if text is None else initial_head(self.model.model, self.shape, text)

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Loss over `DEPTH` draft steps from every position."""
        target: Any = self.model.model
        drafts = unroll(self.network, target.get_input_embeddings().weight, batch, DEPTH, _SHARE, _NOISE)
        return positions_loss(drafts, self.scores, batch, acceptance_loss)

    def finish(self, text: Iterable[Conversation]) -> None:
        """Put the vocabulary into clusters, if it is large enough for that."""
        if not can_be_clustered(len(self.vocabulary)):
            return
        self.network, order = cluster(self.network, self.scores, self._outputs(text))
        self.shape, self.scores = self.network.shape, self.scores[order]
        self.vocabulary = self.vocabulary[order.to(self.vocabulary.device)]

    @torch.no_grad()
    def _outputs(self, text: Iterable[Conversation]) -> Tensor:
        """Outputs of the network [N, d] at positions where the target chose the token that the network drafts."""
        target: Any = self.model.model
        embedding: Tensor = target.get_input_embeddings().weight
        device, found, count = embedding.device, list[Tensor](), 0
        long_enough = (talk for talk in text if len(talk.tokens) > DEPTH + 1)
        with rounded(self.network), torch.autocast(device.type, torch.bfloat16, enabled=target.dtype != torch.float32):
            for talk in long_enough:
                if count >= _OUTPUTS:
                    break
                parts = (talk.tokens.long(), talk.sampled, talk.features, talk.log_total)
                batch = Batch(*(part[None].to(device) for part in parts))
                for drafted, places in unroll(self.network, embedding, batch, DEPTH):
                    found.append(drafted[0, batch.counted[0, places + 1]].float())
                    count += len(found[-1])
        return torch.cat(found)

    def save(self, folder: Path, made: Distilled) -> None:
        """Write weights and card."""
        card = HeadCard(
            target=made.target,
            fingerprint=self.model.fingerprint,
            shape=self.shape,
            tokens=made.tokens,
            steps=made.steps,
            minutes=made.minutes,
            gamma=made.gamma,
            greedy=made.reached["greedy"],
            sampled=made.reached["temperature 1"],
            codes="q4",
            steps_before=made.steps_before,
            norms=self.model.norms,
        )
        save_head(folder, self.network, self.vocabulary, card)


def unroll(
    head: DraftHead,
    embedding: Tensor,
    batch: Batch,
    depth: int,
    share: float = 1.0,
    noise: float = 0.0,
    begin: Tensor | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Run the head over several draft steps from every position of a batch.

    Training-time test of EAGLE-3 (Li et al. 2025, section 3.2): from the second step on the head reads its own output
    instead of the target's hidden states, as it does when drafting.

    Args:
        head: the head to train.
        embedding: [V, d], the target's token embeddings.
        batch: tokens with the target's hidden states.
        depth: draft steps.
        share: fraction of positions, drawn anew for each batch, that continue beyond the first step.
        noise: standard deviation of the random factor on hidden states.
        begin: [B, T], the place where each token's conversation begins, as no position attends to another one; None
            where a sequence is one conversation.

    Yields:
        For each step, output states [B, N, d], and the places [N] of the tokens that it has read last.
    """
    device, length = batch.tokens.device, batch.tokens.shape[1]
    # From the state at anchor i and token i+1, the first step drafts token i+2.
    anchors = torch.arange(length - depth - 1, device=device)
    tapped = batch.tapped[:, : len(anchors)]
    if noise:
        tapped = tapped * (1 + noise * torch.randn_like(tapped))
    state = head.fused(tapped)
    mask = (anchors <= anchors[:, None])[None, None]
    if begin is not None:
        own = begin[:, None, : len(anchors)]
        mask = mask & (own[..., None] == own[..., None, :])
    groups = head.shape.heads // head.shape.key_heads
    keys: list[Tensor] = []
    values: list[Tensor] = []
    for step in range(depth):
        stream = head.enter(state, functional.embedding(batch.tokens[:, anchors + step + 1], embedding))
        if step:  # a draft attends to target states up to its anchor, then to its own
            drafts = torch.eye(len(anchors), dtype=torch.bool, device=device).expand(*mask.shape[:2], -1, -1)
            mask = torch.cat([mask, drafts], -1)
        query, key, value = head.read(stream, head.rotation((anchors + step)[None]))
        keys.append(key)
        values.append(value)
        # Repeated, as the fused attention of a GPU takes no mask together with fewer key heads.
        known, told = (torch.cat(part, 2).repeat_interleave(groups, 1) for part in (keys, values))
        attended = functional.scaled_dot_product_attention(query, known, told, mask)
        drafted = head.finish(stream, attended)
        yield drafted, anchors + step + 1
        if step == 0 and share < 1:
            count = int(share * len(anchors))
            chosen = torch.rand(len(anchors), device=device).argsort()[:count].sort().values
            anchors, mask, drafted = anchors[chosen], mask[..., chosen, :], drafted[:, chosen]
        state = head.again(drafted)


def head_shape(target: Any, name: str) -> HeadShape:
    """Sizes of a draft head for a target: the sizes of one of its layers.

    Args:
        target: a network of transformers.
        name: display name, for the error.

    Raises:
        EngineError: the network's architecture is not supported by draft heads.
    """
    layers, hidden = last_state(target, name)
    config = target.config.get_text_config()
    heads = config.num_attention_heads
    rope = getattr(config, "rope_parameters", None) or {}
    return HeadShape(
        hidden=hidden,
        heads=heads,
        key_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_size=getattr(config, "head_dim", None) or hidden // heads,
        intermediate=config.intermediate_size,
        taps=tuple(sorted({min(2, layers - 1), layers // 2, max(layers - 3, 0), layers})),
        rope_theta=float(rope.get("rope_theta", 10_000.0)),
        epsilon=float(getattr(config, "rms_norm_eps", 1e-6)),
    )


def initial_head(target: Any, shape: HeadShape, conversations: Iterable[Conversation]) -> DraftHead:
    """Initialised draft head, in float32, on the target's device.

    Args:
        target: a network of transformers.
        shape: as `head_shape` returns it.
        conversations: text to fit the linear maps on; tens of thousands of tokens suffice.
    """
    head = DraftHead(shape).to(target.device)
    with torch.no_grad():
        for weight in head.parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=_SPREAD)
        _copy_layer(head, target, shape.taps[-2])
        _fit(head, target.get_input_embeddings().weight, conversations)
    return head


def _copy_layer(head: DraftHead, target: Any, depth: int) -> None:
    """Copy the weights of the target's layer that reads the hidden state of that depth, if shapes match."""
    base = target.base_model
    layer = base.layers[depth] if hasattr(base, "layers") else None
    attention, mlp = getattr(layer, "self_attn", None), getattr(layer, "mlp", None)
    copies: dict[Any, list[Any]] = {
        head.qkv: [getattr(attention, name, None) for name in ("q_proj", "k_proj", "v_proj")],
        head.out: [getattr(attention, "o_proj", None)],
        head.gate_up: [getattr(mlp, name, None) for name in ("gate_proj", "up_proj")],
        head.down: [getattr(mlp, "down_proj", None)],
        head.read_norm: [getattr(layer, "input_layernorm", None)],
        head.mlp_norm: [getattr(layer, "post_attention_layernorm", None)],
        head.score_norm: [getattr(base, "norm", None)],
    }
    for mine, theirs in copies.items():
        weights = [getattr(module, "weight", None) for module in theirs]
        if all(weight is not None for weight in weights):
            whole = torch.cat([weight.float() for weight in weights if weight is not None])
            if whole.shape == mine.weight.shape:
                mine.weight.copy_(whole)


def _fit(head: DraftHead, embedding: Tensor, conversations: Iterable[Conversation]) -> None:
    """Fit `fuse` together with `token`, and `again`, by least squares."""
    d, taps = head.shape.hidden, len(head.shape.taps)
    width = d * (taps + 1)
    sizes: list[Tensor] = []
    products = torch.zeros(width, width, dtype=torch.float64)
    answers = torch.zeros(width, d, dtype=torch.float64)
    for talk in conversations:
        tapped = talk.features.float().reshape(-1, taps, d)
        embedded = embedding[talk.tokens.long().to(embedding.device)].float().cpu()
        known = torch.cat([head.normed(tapped)[:-1].flatten(1), head.normed(embedded)[1:]], dim=1)
        wanted = tapped[1:, -2]
        sizes.append(tapped[:, -1].pow(2).mean().sqrt())
        size = wanted.norm(dim=-1, keepdim=True)
        # The target has not read the last token of a conversation: its state there is 0.
        kept = ((size > 0) & (size < _OUTLIER * size.median()))[:, 0]
        scale = size.median() / size[kept]
        known, wanted = known[kept] * scale, wanted[kept] * scale
        products += (known.T @ known).double()
        answers += (known.T @ wanted).double()
    both = _solve(products, answers)
    head.fuse.weight.copy_(both[:, : d * taps])
    head.token.weight.copy_(both[:, d * taps :])
    own = slice(d * (taps - 1), width)
    # The head's own output is not normed again: its scale is that of the target's last hidden state.
    head.again.weight.copy_(_solve(products[own, own], answers[own])[:, :d] / torch.stack(sizes).mean())


def _solve(products: Tensor, answers: Tensor) -> Tensor:
    damped = products + torch.eye(len(products), dtype=products.dtype) * products.diagonal().mean() * _DAMPING
    weights: Tensor = torch.linalg.solve(damped, answers).float().T
    return weights


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
