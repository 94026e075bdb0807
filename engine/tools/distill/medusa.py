"""The kind medusa: a residual block for each further position, scored by the target's own output layer.

Cai et al. 2024 (arXiv 2401.10774), section 2.2.1 (Medusa-1: the target stays as it is) with the loss of its
self-distillation (2.3.2): cross-entropy against the target's distribution, as the text is the target's own. The output
layers are shared with the target, so that a head is a single square matrix.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from specchat.engine.config import EngineConfig
from specchat.engine.drafters.head.drafter import HeadDrafter
from specchat.engine.drafters.head.folder import LoadedHead
from specchat.engine.drafters.published.layout import FINGERPRINT, TARGET
from specchat.engine.drafters.published.load import read_published
from specchat.engine.models.checkpoint import read_json
from specchat.engine.models.load import LoadedModel
from specchat.engine.request import DEFAULT_GAMMA
from specchat.engine.research.medusa import CONFIG, WEIGHTS, MedusaHeads, MedusaLayout, save_medusa
from specchat.engine.tools.distill.batch import Batch
from specchat.engine.tools.distill.beginning import Beginning, as_stated, other_sizes
from specchat.engine.tools.distill.corpus import Conversation
from specchat.engine.tools.distill.distilled import Distilled
from specchat.engine.tools.distill.initial import last_state
from specchat.engine.tools.distill.objective import Agreement, Truth, cross_entropy
from specchat.engine.tools.distill.trainer import RATE
from specchat.engine.worker.assembly import Assembly, put_together

HEADS = DEFAULT_GAMMA
_BLOCKS = 1
"""Per head, as its authors publish them."""
_FADE = 0.8
"""Weight of each head's loss relative to the head before (section 2.2.1)."""
_SHARE = 0.4
"""Fraction of positions of a batch that each update is made on: neighbours teach much the same."""


class MedusaRecipe:
    """Medusa heads for a target.

    Raises:
        EngineError: the target does not score its last hidden state with plain output embeddings.
    """

    noun = "Medusa heads"
    drafter = HeadDrafter.name
    files = (WEIGHTS, CONFIG)

    def __init__(self, model: LoadedModel) -> None:
        self._model = model
        self.taps, self._hidden = last_state(model.model, model.name)

    def beginning(self, folder: Path) -> Beginning:
        """As many heads, of the same sizes, that were made for the same target."""
        heads, vocabulary = read_published(folder, self._model)
        if not isinstance(heads, MedusaHeads) or (len(heads.heads), heads.blocks, heads.shared) != (
            HEADS,
            _BLOCKS,
            True,
        ):
            raise other_sizes(folder, self._model.name)
        return as_stated(folder, read_json(folder / CONFIG), heads.state_dict(), vocabulary)

    def trainee(self, vocabulary: Tensor, talks: Iterable[Conversation] | None) -> MedusaTrainee:  # noqa: ARG002
        """Heads that pass on the target's hidden state as it is."""
        layout = MedusaLayout(HEADS, _BLOCKS, shared=True)
        heads = MedusaHeads(layout, self._hidden, len(vocabulary), *self.taps)
        for weight in heads.parameters():
            nn.init.zeros_(weight)
        return MedusaTrainee(self._model, heads.to(self._model.model.device), vocabulary)


class MedusaTrainee:
    """Medusa heads in training.

    Args:
        model: their target.
        heads: in float32, on the target's device.
        vocabulary: [V'], int64: the tokens that they draft.
    """

    rate = RATE
    four_bits = False

    def __init__(self, model: LoadedModel, heads: MedusaHeads, vocabulary: Tensor) -> None:
        self.network = heads
        self._model, self._vocabulary = model, vocabulary
        target: Any = model.model
        output: Tensor = target.get_output_embeddings().weight
        self._scores = output[vocabulary.to(output.device)].contiguous()

    def loss(self, batch: Batch) -> tuple[Tensor, list[Agreement]]:
        """Of all heads, from a part of the positions. From the state at token i, head k drafts token i + 2 + k."""
        depth, length, device = len(self.network.heads), batch.tokens.shape[1], batch.tokens.device
        count = length - depth - 1
        anchors = torch.randperm(count, device=device)[: max(1, int(_SHARE * count))]
        states = batch.tapped[:, anchors].float()
        loss, agreements = torch.zeros((), device=device), []
        for head in range(depth):
            drafted: Tensor = self.network(states, head)
            behind = anchors + head + 1
            truth = Truth(
                batch.tapped[:, behind].flatten(0, 1),
                batch.log_total[:, behind].flatten(),
                batch.counted[:, behind + 1].flatten(),
            )
            one, agreement = cross_entropy(drafted.flatten(0, 1).to(self._scores.dtype), self._scores, truth)
            loss = loss + _FADE**head * one
            agreements.append(agreement)
        return loss / sum(_FADE**head for head in range(depth)), agreements

    def assemble(self, config: EngineConfig) -> Assembly:
        """With a copy of the heads in the target's dtype."""
        heads = copy.deepcopy(self.network).to(self._model.model.dtype).eval()
        vocabulary = self._vocabulary.to(self._model.model.device)
        return put_together(config, self._model, head=LoadedHead(heads, vocabulary, self._model.name, 0))

    def save(self, folder: Path, made: Distilled, fingerprint: str) -> None:
        """In the layout of published Medusa heads."""
        about = {TARGET: made.target, FINGERPRINT: fingerprint, "distilled": asdict(made)}
        save_medusa(folder, self.network, self._vocabulary, about)
