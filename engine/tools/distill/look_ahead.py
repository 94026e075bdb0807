"""The kind pass: look-ahead embeddings, which are all that is trained (PaSS, Monea et al. 2023, arXiv 2311.13581).

In a text of the target's own, n embeddings follow a token in the place of the next n; at the j-th of them the target is
to say what it says behind token j of the text. The embeddings see the text up to their token and each other, as when
they ride in a verifying pass. The paper maximises the likelihood of the text; here it is the cross-entropy against the
target's distribution, as for the other kinds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from specchat.engine.config import EngineConfig
from specchat.engine.models.checkpoint import read_json
from specchat.engine.models.load import LoadedModel
from specchat.engine.request import DEFAULT_GAMMA
from specchat.engine.research.pass_drafter import (
    CARD,
    WEIGHTS,
    LookAhead,
    PassDrafter,
    load_look_ahead,
    save_look_ahead,
)
from specchat.engine.tools.distill.batch import Batch
from specchat.engine.tools.distill.beginning import Beginning, as_stated, other_sizes
from specchat.engine.tools.distill.corpus import Conversation
from specchat.engine.tools.distill.distilled import Distilled
from specchat.engine.tools.distill.initial import last_state
from specchat.engine.tools.distill.objective import Agreement, Truth, cross_entropy
from specchat.engine.worker.assembly import Assembly, put_together

POSITIONS = DEFAULT_GAMMA
_ROWS, _PLACES = 2, 24
"""Rows of a batch that an update is made on, and places in each that embeddings follow: the whole target is run."""
_FADE = 0.8
"""Weight of each position's loss relative to the one before, as for heads."""
_RATE = 0.05
"""Peak learning rate, in standard deviations of the target's embeddings: there are few weights, and few updates."""


class PassRecipe:
    """Look-ahead embeddings for a target.

    Raises:
        EngineError: the target does not score its last hidden state with plain output embeddings.
    """

    noun = "Look-ahead embeddings"
    drafter = PassDrafter.name
    files = (WEIGHTS, CARD)

    def __init__(self, model: LoadedModel) -> None:
        self._model = model
        self.taps, _ = last_state(model.model, model.name)

    def beginning(self, folder: Path) -> Beginning:
        """As many embeddings that were made for the same target."""
        embeddings = load_look_ahead(folder, self._model).embeddings
        if len(embeddings) != POSITIONS:
            raise other_sizes(folder, self._model.name)
        return as_stated(folder, read_json(folder / CARD), {"weight": embeddings}, None)

    def trainee(self, vocabulary: Tensor, talks: Iterable[Conversation] | None) -> PassTrainee:  # noqa: ARG002
        """Embeddings that are the mean of those that the target knows."""
        return PassTrainee(self._model, vocabulary)


class PassTrainee:
    """Look-ahead embeddings in training.

    Args:
        model: their target, which stays as it is.
        vocabulary: [V'], int64: the tokens that the loss is computed on; all of V can be drafted.
    """

    def __init__(self, model: LoadedModel, vocabulary: Tensor) -> None:
        self._model = model
        network: Any = model.model
        known: Tensor = network.get_input_embeddings().weight[vocabulary.to(network.device)].float()
        output: Tensor = network.get_output_embeddings().weight
        self._scores = output[vocabulary.to(output.device)].contiguous()
        self.rate, self.four_bits = _RATE * float(known.std()), False
        self.network = nn.Embedding(POSITIONS, known.shape[1], _weight=known.mean(0).repeat(POSITIONS, 1))

    def loss(self, batch: Batch) -> tuple[Tensor, list[Agreement]]:
        """At some places of some rows. Behind token i, embedding j stands for token i + 1 + j and tells i + 2 + j."""
        network: Any = self._model.model
        network.set_attn_implementation("eager")  # a runner has switched on its own, which needs its cache
        tokens, length, device = batch.tokens[:_ROWS], batch.tokens.shape[1], batch.tokens.device
        places = torch.randperm(length - POSITIONS - 1, device=device)[:_PLACES].sort().values
        with torch.no_grad():
            cache = network.base_model(input_ids=tokens, use_cache=True).past_key_values
        read = self.network.weight.repeat(len(tokens), len(places), 1).to(network.dtype)
        out: Tensor = network.base_model(
            inputs_embeds=read,
            position_ids=(places[:, None] + 1 + torch.arange(POSITIONS, device=device)).flatten()[None],
            attention_mask=self._mask(places, length),
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state
        drafted = out.view(len(tokens), len(places), POSITIONS, -1)
        loss, agreements = torch.zeros((), device=device), []
        for position in range(POSITIONS):
            behind = places + position + 1
            truth = Truth(
                batch.tapped[:_ROWS, behind].flatten(0, 1),
                batch.log_total[:_ROWS, behind].flatten(),
                batch.counted[:_ROWS, behind + 1].flatten(),
            )
            one, agreement = cross_entropy(drafted[:, :, position].flatten(0, 1), self._scores, truth)
            loss = loss + _FADE**position * one
            agreements.append(agreement)
        return loss / sum(_FADE**position for position in range(POSITIONS)), agreements

    def assemble(self, config: EngineConfig) -> Assembly:
        """With the embeddings as they are now."""
        embeddings = self.network.weight.detach().clone()
        return put_together(config, self._model, look_ahead=LookAhead(embeddings, self._model.name))

    def save(self, folder: Path, made: Distilled, fingerprint: str) -> None:
        """Embeddings and card of `engine.research.pass_drafter`."""
        save_look_ahead(folder, self.network.weight, made.target, fingerprint, {"distilled": asdict(made)})

    def _mask(self, places: Tensor, length: int) -> Tensor | dict[str, Tensor]:
        """What the embeddings may not see, as numbers added to scores [1, 1, places x n, length + places x n]."""
        device, dtype, count = places.device, self._scores.dtype, len(places) * POSITIONS
        text = torch.arange(length, device=device) <= places.repeat_interleave(POSITIONS)[:, None]
        each = torch.ones(POSITIONS, POSITIONS, device=device).tril()
        own = torch.kron(torch.eye(len(places), device=device), each).bool()
        seen = torch.cat([text, own], dim=1)
        hidden = torch.zeros(count, length + count, dtype=dtype, device=device)
        mask = hidden.masked_fill(~seen, torch.finfo(dtype).min)[None, None]
        # Texts of training are no longer than a sliding window.
        types = set(getattr(self._model.model.config.get_text_config(), "layer_types", None) or ())
        return dict.fromkeys(types, mask) if "sliding_attention" in types else mask
