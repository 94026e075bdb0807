"""The kind eagle: a head of one layer that reads its own output from the second step on (Li et al. 2024, 2025)."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from specchat.engine.config import EngineConfig
from specchat.engine.drafters.head.drafter import HeadDrafter
from specchat.engine.drafters.head.folder import (
    CARD,
    WEIGHTS,
    HeadCard,
    LoadedHead,
    read_head,
    save_head,
)
from specchat.engine.drafters.head.network import DraftHead, HeadShape
from specchat.engine.models.load import LoadedModel
from specchat.engine.tools.distill.corpus import Conversation
from specchat.engine.tools.distill.initial import head_shape, initial_head
from specchat.engine.tools.distill.objective import Agreement, Batch, acceptance_loss, faded
from specchat.engine.tools.distill.options import Distilled
from specchat.engine.tools.distill.trainer import RATE, rounded
from specchat.engine.tools.distill.work_folder import StartingDraft, other_sizes
from specchat.engine.worker.assembly import Assembly, put_together

DEPTH = 4
"""Draft steps that the head is trained over."""
_SHARE = 0.3
"""Fraction of positions of a batch that are trained beyond the first step."""
_NOISE = 0.1


class EagleRecipe:
    """Makes draft heads for a target.

    Attributes:
        noun: name of the draft, with its article.
        drafter: name of the drafter that evaluates it.
        files: names of the files of a finished draft.
        taps: depths of the target's hidden states that the training reads, the last one last.

    Raises:
        EngineError: the target's architecture is not supported by draft heads.
    """

    noun = "a draft head"
    drafter = HeadDrafter.name
    files = (WEIGHTS, CARD)

    def __init__(self, model: LoadedModel) -> None:
        self._model = model
        self._shape = head_shape(model.model, model.name)
        self.taps = self._shape.taps

    def start(self, folder: Path) -> StartingDraft:
        """Load a finished draft head, to be trained further.

        Raises:
            EngineError: it was made for another target or has other sizes, or the folder is damaged.
        """
        card, head, vocabulary = read_head(folder, self._model)
        if card.shape != self._shape:
            raise other_sizes(folder, self._model.name)
        return StartingDraft(head.state_dict(), vocabulary, card.tokens, card.steps, card.minutes)

    def trainee(self, vocabulary: Tensor, text: Iterable[Conversation] | None) -> EagleTrainee:
        """A head to train.

        Args:
            vocabulary: [V'], int64: the tokens that it drafts.
            text: text to fit the initial weights on; None if weights are loaded afterwards.
        """
        network, shape = self._model.model, self._shape
        head = DraftHead(shape).to(network.device) if text is None else initial_head(network, shape, text)
        return EagleTrainee(self._model, shape, head, vocabulary)


class EagleTrainee:
    """A draft head in training.

    Attributes:
        network: weights in float32 on the target's device.
        rate: peak learning rate.
        four_bits: whether its linear layers become 4-bit codes with a quantised target, and are trained for that.
    """

    rate = RATE
    four_bits = True

    def __init__(self, model: LoadedModel, shape: HeadShape, head: DraftHead, vocabulary: Tensor) -> None:
        self.network = head
        self._model, self._shape, self._vocabulary = model, shape, vocabulary
        target: Any = model.model
        self._embedding: Tensor = target.get_input_embeddings().weight
        output: Tensor = target.get_output_embeddings().weight
        self._scores = output[vocabulary.to(output.device)].contiguous()

    def loss(self, batch: Batch) -> tuple[Tensor, list[Agreement]]:
        """Loss over `DEPTH` draft steps from every position, and the agreement with the target at each step."""
        return unroll(self.network, self._embedding, self._scores, batch, DEPTH, _SHARE, _NOISE)

    def assemble(self, config: EngineConfig) -> Assembly:
        """An engine's parts with a copy of the head in the target's dtype, rounded as it is trained."""
        with rounded(self.network):
            head = copy.deepcopy(self.network).to(self._model.model.dtype).eval()
        vocabulary = self._vocabulary.to(self._model.model.device)
        return put_together(config, self._model, head=LoadedHead(head, vocabulary, self._model.name, 0))

    def save(self, folder: Path, made: Distilled, fingerprint: str) -> None:
        """Write weights and card, so that `--draft` loads them.

        Raises:
            EngineError: the disk is full or not writable.
        """
        card = HeadCard(
            target=made.target,
            fingerprint=fingerprint,
            shape=self._shape,
            tokens=made.tokens,
            steps=made.steps,
            minutes=made.minutes,
            gamma=made.gamma,
            greedy=made.reached["greedy"],
            sampled=made.reached["temperature 1"],
            codes="q4",
            steps_before=made.steps_before,
        )
        save_head(folder, self.network, self._vocabulary, card)


def unroll(
    head: DraftHead,
    embedding: Tensor,
    vocabulary: Tensor,
    batch: Batch,
    depth: int,
    share: float = 1.0,
    noise: float = 0.0,
) -> tuple[Tensor, list[Agreement]]:
    """Run the head over several draft steps from every position of a batch.

    Training-time test of EAGLE-3 (Li et al. 2025, section 3.2): from the second step on the head reads its own output
    instead of the target's hidden states, as it does when drafting.

    Args:
        head: the head to train.
        embedding: [V, d], the target's token embeddings.
        vocabulary: [V', d], the target's output embeddings of the tokens that the head can draft.
        batch: tokens with the target's hidden states.
        depth: draft steps.
        share: fraction of positions, drawn anew for each batch, that continue beyond the first step.
        noise: standard deviation of the random factor on hidden states, against overfitting.

    Returns:
        The loss, and the agreement at each step.
    """
    device, length = batch.tokens.device, batch.tokens.shape[1]
    # From the state at anchor i and token i+1, the first step drafts token i+2.
    anchors = torch.arange(length - depth - 1, device=device)
    tapped = batch.tapped[:, : len(anchors)]
    if noise:
        tapped = tapped * (1 + noise * torch.randn_like(tapped))
    state = head.fused(tapped)
    mask = anchors <= anchors[:, None]
    keys: list[Tensor] = []
    values: list[Tensor] = []
    losses, agreements = [], []
    for step in range(depth):
        embedded = functional.embedding(batch.tokens[:, anchors + step + 1], embedding)
        stream = head.enter(state, embedded)
        if step:  # a draft attends to target states up to its anchor, then to its own
            mask = torch.cat([mask, torch.eye(len(anchors), dtype=torch.bool, device=device)], 1)
        query, key, value = head.read(stream, head.rotation((anchors + step)[None]))
        keys.append(key)
        values.append(value)
        attended = functional.scaled_dot_product_attention(
            query, torch.cat(keys, 2), torch.cat(values, 2), mask, enable_gqa=True
        )
        drafted = head.finish(stream, attended)
        truth = batch.truth(anchors + step + 1, head.shape.hidden)
        loss, agreement = acceptance_loss(drafted.flatten(0, 1), vocabulary, truth)
        losses.append(loss)
        agreements.append(agreement)
        if step == 0 and share < 1:
            chosen = torch.randperm(len(anchors), device=device)[: int(share * len(anchors))].sort().values
            anchors, mask, drafted = anchors[chosen], mask[chosen], drafted[:, chosen]
        state = head.again(drafted)
    return faded(losses), agreements
