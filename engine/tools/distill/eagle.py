"""The kind eagle: a head of one layer that reads its own output from the second step on (Li et al. 2024, 2025)."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import Tensor

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
from specchat.engine.tools.distill.batch import Batch
from specchat.engine.tools.distill.beginning import Beginning, other_sizes
from specchat.engine.tools.distill.corpus import Conversation
from specchat.engine.tools.distill.distilled import Distilled
from specchat.engine.tools.distill.initial import head_shape, initial_head
from specchat.engine.tools.distill.objective import Agreement
from specchat.engine.tools.distill.rounding import rounded
from specchat.engine.tools.distill.trainer import RATE
from specchat.engine.tools.distill.unroll import unroll
from specchat.engine.worker.assembly import Assembly, put_together

DEPTH = 4
"""Draft steps that the head is trained over."""
_SHARE = 0.3
"""Fraction of positions of a batch that are trained beyond the first step."""
_NOISE = 0.1


class EagleRecipe:
    """Draft heads for a target.

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

    def beginning(self, folder: Path) -> Beginning:
        """A draft head of the same sizes that was made for the same target."""
        card, head, vocabulary = read_head(folder, self._model)
        if card.shape != self._shape:
            raise other_sizes(folder, self._model.name)
        return Beginning(head.state_dict(), vocabulary, card.tokens, card.steps, card.minutes)

    def trainee(self, vocabulary: Tensor, talks: Iterable[Conversation] | None) -> EagleTrainee:
        """A head whose layer is a copy of one of the target's, fitted to the text."""
        network, shape = self._model.model, self._shape
        head = DraftHead(shape).to(network.device) if talks is None else initial_head(network, shape, talks)
        return EagleTrainee(self._model, shape, head, vocabulary)


class EagleTrainee:
    """A draft head in training.

    Args:
        model: its target.
        shape: its sizes.
        head: in float32, on the target's device.
        vocabulary: [V'], int64: the tokens that it drafts.
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
        """Over `DEPTH` draft steps from every position."""
        return unroll(self.network, self._embedding, self._scores, batch, DEPTH, _SHARE, _NOISE)

    def assemble(self, config: EngineConfig) -> Assembly:
        """With a copy of the head in the target's dtype, rounded as it is trained."""
        with rounded(self.network):
            head = copy.deepcopy(self.network).to(self._model.model.dtype).eval()
        vocabulary = self._vocabulary.to(self._model.model.device)
        return put_together(config, self._model, head=LoadedHead(head, vocabulary, self._model.name, 0))

    def save(self, folder: Path, made: Distilled, fingerprint: str) -> None:
        """Weights and card of `engine.drafters.head.folder`."""
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
