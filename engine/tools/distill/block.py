"""The kind block: a block drafter with Markov and confidence heads, in the published form of DSpark.

A block begins at a random anchor of the text and sees the target's hidden states of all tokens before it, as in
drafting (DFlash: Chen et al. 2026). The Markov head reads the true token before each position. The loss of a position
is that of DSpark (Cheng et al. 2026; weights of its published training): cross-entropy, the distance Σ |p - q|, and the
confidence head's cross-entropy against Σ min(p, q), the chance that a token drawn from q is accepted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from specchat.engine.config import EngineConfig
from specchat.engine.drafters.block.drafter import BlockDrafter
from specchat.engine.drafters.block.network import BlockNetwork
from specchat.engine.drafters.block.reading import LoadedBlock, embedding_scale, read_block
from specchat.engine.drafters.block.shape import read_shape
from specchat.engine.drafters.part_folder import PartFolder, stored_weights
from specchat.engine.drafters.published.find import CONFIG
from specchat.engine.drafters.published.find import WEIGHTS as PUBLISHED_WEIGHTS
from specchat.engine.drafters.published.load import FINGERPRINT, TARGET
from specchat.engine.drafters.published.weights import TO_TARGET
from specchat.engine.models.checkpoint import read_json
from specchat.engine.models.load import LoadedModel
from specchat.engine.tools.distill.eagle import head_shape
from specchat.engine.tools.distill.text import Conversation
from specchat.engine.tools.distill.trainer import Batch, Draft
from specchat.engine.tools.distill.work_folder import Distilled, StartingDraft, as_stated, other_sizes
from specchat.engine.worker.assembly import Assembly, assemble_loaded

WEIGHTS = PUBLISHED_WEIGHTS[0]
LAYERS, ROWS, RANK = 2, 8, 128
"""Layers, rows of a block, and rank of the Markov head."""
_ANCHORS = 16
"""Blocks per conversation and update."""
_CROSS, _APART = 0.1, 0.9
"""Weights of cross-entropy and distance, relative to that of confidence."""
_FADE = 4.0
"""Rows after which the weight of a row's loss is e times smaller: a draft ends at its first rejected token."""
_SPREAD = 0.02
"""Standard deviation of initial weights."""
_BIASES = "markov_head.markov_w2.weight"
_LEAST = 1e-6
"""Smallest probability in the loss of confidence."""


class Block(Draft):
    """A block drafter.

    Raises:
        EngineError: the target's architecture is not supported.
    """

    noun = "a block drafter"
    drafter = BlockDrafter.name
    files = (WEIGHTS, CONFIG)
    rate = 6e-4

    def __init__(self, model: LoadedModel) -> None:
        super().__init__(model)
        self._config = block_config(model)
        confidence = torch.empty(1, self.hidden + RANK, device="meta")
        shape = read_shape(self._config, {"confidence_head.proj.weight": confidence})
        self.shape = replace(shape, embedding_scale=embedding_scale(model))
        self.taps = self.shape.taps

    def start(self, folder: Path) -> StartingDraft:
        """Load a finished block drafter, to be trained further."""
        network, vocabulary = read_block(folder, self.model)
        # The same ε differs in its last digits between a GGUF file, which has 32 bits of it, and a config.json.
        whole = replace(network.shape, epsilon=self.shape.epsilon, draft_vocabulary=self.shape.draft_vocabulary)
        if whole != self.shape:
            raise other_sizes(folder, self.model.name)
        weights = {name: weight.float() for name, weight in network.state_dict().items()}
        biases = weights[_BIASES].new_zeros(self.shape.vocabulary, RANK)
        weights[_BIASES] = biases.index_copy(0, vocabulary, weights[_BIASES])
        return as_stated(folder, read_json(folder / CONFIG), weights, vocabulary)

    def new_network(self, text: Iterable[Conversation] | None) -> nn.Module:  # noqa: ARG002
        """A network of small random weights whose Markov head adds nothing yet, to any token of V."""
        network = BlockNetwork(self.shape)
        for name, weight in network.named_parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=0.0 if name == _BIASES else _SPREAD)
        return network

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Loss of blocks at random anchors; row i of the block at anchor a proposes token a + 1 + i."""
        device, length = batch.tokens.device, batch.tokens.shape[1]
        anchors = torch.randperm(length - ROWS - 1, device=device)[:_ANCHORS] + 1  # the context is not empty
        places = anchors[:, None] + torch.arange(ROWS, device=device)
        outcome = self.blocks(batch, anchors)
        hidden = batch.tapped[..., -self.hidden :]
        weights = torch.exp(-torch.arange(ROWS, device=device) / _FADE)
        losses, rates = [], []
        for row in range(ROWS):
            at = places[:, row]
            counted = batch.counted[:, at + 1]
            parts = (outcome[:, :, row], hidden[:, at], batch.log_total[:, at], batch.tokens[:, at])
            # Scores of one row at a time are in memory, and are computed again for the gradient.
            loss, rate = checkpoint(self._judged, *(part[counted] for part in parts), use_reentrant=False)
            losses.append(loss)
            rates.append(rate)
        return (weights * torch.stack(losses)).sum() / weights.sum(), torch.stack(rates)

    def blocks(self, batch: Batch, anchors: Tensor) -> Tensor:
        """What the rows of the blocks at some anchors [A] are scored with, [B, A, rows, d]."""
        network, target = self.network, cast("Any", self.model.model)
        embedding: Tensor = target.get_input_embeddings().weight
        length, device = batch.tokens.shape[1], anchors.device
        columns, places = torch.arange(length, device=device), anchors[:, None] + torch.arange(ROWS, device=device)
        keys, values = network.context(batch.tapped, network.turns(columns[None]))
        seen = network.visibility(anchors, columns.expand(len(anchors), -1))[0][:, 0]  # all layers are alike
        own = torch.kron(torch.eye(len(anchors), device=device), seen[0, :, length:].float()).bool()
        mask = torch.cat([seen[..., :length].flatten(0, 1), own], -1)[None, None]
        tokens = torch.full((len(batch.tokens), *places.shape), self.shape.mask, device=device)
        tokens[..., 0] = batch.tokens[:, anchors]
        embedded, turns = functional.embedding(tokens.flatten(1), embedding), network.turns(places.flatten()[None])
        out: Tensor = network.block(embedded, turns, keys, values, [mask] * LAYERS)
        return out.view(len(tokens), *places.shape, -1)

    def _judged(self, outcome: Tensor, hidden: Tensor, log_total: Tensor, previous: Tensor) -> tuple[Tensor, Tensor]:
        """Mean loss of N positions, and mean Σ min(p, q).

        Args:
            outcome: [N, d], what the rows are scored with.
            hidden: [N, d], the target's last hidden states there.
            log_total: [N], log-sum-exp of its logits there.
            previous: [N], int64, the tokens there.
        """
        network, scores, count = self.network, self.scores, max(len(previous), 1)
        p = ((hidden @ scores.T).float() - log_total[:, None]).exp()
        markov = network.markov_head
        bias = markov.markov_w1(previous) @ markov.markov_w2.weight[self.vocabulary.to(previous.device)].T
        log_q = ((outcome.to(scores.dtype) @ scores.T).float() + bias.float()).log_softmax(-1)
        q = log_q.exp()
        accepted = torch.minimum(p, q).sum(-1).detach()
        chance = network.confidence(outcome, previous).clamp(_LEAST, 1 - _LEAST)
        doubt = -(accepted * chance.log() + (1 - accepted) * (1 - chance).log())
        loss = _APART * (p - q).abs().sum(-1) - _CROSS * (p * log_q).sum(-1) + doubt
        return loss.sum() / count, accepted.sum() / count

    def assemble(self, config: EngineConfig) -> Assembly:
        """An engine's parts with a copy of the network in the target's dtype."""
        network = self.finished().to(self.model.model.dtype)
        block = LoadedBlock(network, self.vocabulary.to(self.model.device), self.model.name, 0)
        return assemble_loaded(config, self.model, block=block)

    def finished(self) -> BlockNetwork:
        """A copy of the network that scores the tokens of its vocabulary only."""
        weights = {name: weight.detach().clone() for name, weight in self.network.state_dict().items()}
        weights[_BIASES] = weights[_BIASES][self.vocabulary.to(weights[_BIASES].device)]
        with torch.device("meta"):
            network = BlockNetwork(replace(self.shape, draft_vocabulary=len(self.vocabulary)))
        network.load_state_dict(weights, assign=True)
        return network.eval().requires_grad_(False)

    def save(self, folder: Path, made: Distilled) -> None:
        """Write it in the published form; config.json comes last, so that a folder with it is complete."""
        shift = self.vocabulary.cpu() - torch.arange(len(self.vocabulary))
        about = {TARGET: made.target, FINGERPRINT: self.model.fingerprint, "distilled": asdict(made)}
        tensors = {**stored_weights(self.finished()), TO_TARGET: shift}
        config = {**self._config, "draft_vocab_size": len(self.vocabulary), **about}
        PartFolder("block drafter", CONFIG, WEIGHTS).write(folder, tensors, config)


def block_config(model: LoadedModel) -> dict[str, Any]:
    """config.json of a block drafter for a target.

    Raises:
        EngineError: the target's architecture is not supported.
    """
    like = head_shape(model.model, model.name)
    return {
        "architectures": ["Qwen3DSparkModel"],
        "model_type": "qwen3",
        "hidden_size": like.hidden,
        "intermediate_size": like.intermediate,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": like.heads,
        "num_key_value_heads": like.key_heads,
        "head_dim": like.head_size,
        "hidden_act": "silu",
        "rms_norm_eps": like.epsilon,
        "rope_theta": like.rope_theta,
        "vocab_size": model.vocab_size,
        "block_size": ROWS,
        # Its embedding is a trained one, which an unused token's need not be; no token follows it in a reply.
        "mask_token_id": min(model.eos_ids, default=model.vocab_size - 1),
        "target_layer_ids": [depth - 1 for depth in like.taps],
        "num_target_layers": like.taps[-1],
        "sample_from_anchor": True,
        "markov_rank": RANK,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    }
