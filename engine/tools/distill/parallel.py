"""Drafts that predict several positions in one pass: Medusa heads, and look-ahead embeddings (PaSS).

Medusa heads (Cai et al. 2024, arXiv 2401.10774) are a residual block for each further position, scored by the target's
own output layer, so that a head is a single square matrix: section 2.2.1 (Medusa-1: the target is not trained) with the
loss of section 2.3.2, cross-entropy against the target's distribution, as the text is the target's own.

Look-ahead embeddings (Monea et al. 2023, arXiv 2311.13581) are n trained input embeddings. After a token of the text,
they take the positions of the next n tokens; at the j-th of them the target is trained to predict the token after token
j of the text. The embeddings attend to the text up to their token and to each other, as in a verifying pass. The paper
maximises the likelihood of the text; here the loss is that of Medusa heads.
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
from specchat.engine.research.pass_drafter import CARD, LookAhead, PassDrafter, load_look_ahead, save_look_ahead
from specchat.engine.research.pass_drafter import WEIGHTS as LOOK_AHEAD_WEIGHTS
from specchat.engine.tools.distill.corpus import Conversation
from specchat.engine.tools.distill.initial import last_state
from specchat.engine.tools.distill.objective import Agreement, Batch, cross_entropy, faded
from specchat.engine.tools.distill.options import Distilled
from specchat.engine.tools.distill.trainer import RATE
from specchat.engine.tools.distill.work_folder import StartingDraft, as_stated, other_sizes
from specchat.engine.worker.assembly import Assembly, put_together

HEADS = POSITIONS = DEFAULT_GAMMA
_BLOCKS = 1
"""Residual blocks per head, as in the published heads."""
_SHARE = 0.4
"""Fraction of positions of a batch per update of Medusa heads: neighbours teach much the same."""
_ROWS, _PLACES = 2, 24
"""Rows of a batch per update of embeddings, and places per row that embeddings follow: the whole target is run."""
_RATE = 0.05
"""Peak learning rate of embeddings, in standard deviations of the target's embeddings: few weights, few updates."""


def output_rows(model: LoadedModel, vocabulary: Tensor) -> Tensor:
    """Rows [V', d] of the target's output embeddings for tokens [V']."""
    network: Any = model.model
    weight: Tensor = network.get_output_embeddings().weight
    return weight[vocabulary.to(weight.device)].contiguous()


class MedusaRecipe:
    """Makes Medusa heads for a target; attributes as of `EagleRecipe`.

    Raises:
        EngineError: the target does not score its last hidden state with plain output embeddings.
    """

    noun = "Medusa heads"
    drafter = HeadDrafter.name
    files = (WEIGHTS, CONFIG)

    def __init__(self, model: LoadedModel) -> None:
        self._model = model
        self.taps, self._hidden = last_state(model.model, model.name)

    def start(self, folder: Path) -> StartingDraft:
        """Load finished heads, to be trained further.

        Raises:
            EngineError: they were made for another target or have other sizes, or the folder is damaged.
        """
        heads, vocabulary = read_published(folder, self._model)
        sizes = (len(heads.heads), heads.blocks, heads.shared) if isinstance(heads, MedusaHeads) else None
        if sizes != (HEADS, _BLOCKS, True):
            raise other_sizes(folder, self._model.name)
        return as_stated(folder, read_json(folder / CONFIG), heads.state_dict(), vocabulary)

    def trainee(self, vocabulary: Tensor, text: Iterable[Conversation] | None) -> MedusaTrainee:  # noqa: ARG002
        """Heads that return the target's hidden state unchanged."""
        layout = MedusaLayout(HEADS, _BLOCKS, shared=True)
        heads = MedusaHeads(layout, self._hidden, len(vocabulary), *self.taps)
        for weight in heads.parameters():
            nn.init.zeros_(weight)
        return MedusaTrainee(self._model, heads.to(self._model.model.device), vocabulary)


class MedusaTrainee:
    """Medusa heads in training; attributes as of `EagleTrainee`."""

    rate = RATE
    four_bits = False

    def __init__(self, model: LoadedModel, heads: MedusaHeads, vocabulary: Tensor) -> None:
        self.network = heads
        self._model, self._vocabulary = model, vocabulary
        self._scores = output_rows(model, vocabulary)

    def loss(self, batch: Batch) -> tuple[Tensor, list[Agreement]]:
        """Loss of all heads at some positions. From the state at token i, head k drafts token i + 2 + k."""
        depth, length, device = len(self.network.heads), batch.tokens.shape[1], batch.tokens.device
        count = length - depth - 1
        anchors = torch.randperm(count, device=device)[: max(1, int(_SHARE * count))]
        states = batch.tapped[:, anchors].float()
        losses, agreements = [], []
        for head in range(depth):
            drafted: Tensor = self.network(states, head)
            truth = batch.truth(anchors + head + 1, states.shape[-1])
            loss, agreement = cross_entropy(drafted.flatten(0, 1).to(self._scores.dtype), self._scores, truth)
            losses.append(loss)
            agreements.append(agreement)
        return faded(losses), agreements

    def assemble(self, config: EngineConfig) -> Assembly:
        """An engine's parts with a copy of the heads in the target's dtype."""
        heads = copy.deepcopy(self.network).to(self._model.model.dtype).eval()
        vocabulary = self._vocabulary.to(self._model.model.device)
        return put_together(config, self._model, head=LoadedHead(heads, vocabulary, self._model.name, 0))

    def save(self, folder: Path, made: Distilled, fingerprint: str) -> None:
        """Write them in the layout of published Medusa heads."""
        about = {TARGET: made.target, FINGERPRINT: fingerprint, "distilled": asdict(made)}
        save_medusa(folder, self.network, self._vocabulary, about)


class PassRecipe:
    """Makes look-ahead embeddings for a target; attributes as of `EagleRecipe`.

    Raises:
        EngineError: the target does not score its last hidden state with plain output embeddings.
    """

    noun = "Look-ahead embeddings"
    drafter = PassDrafter.name
    files = (LOOK_AHEAD_WEIGHTS, CARD)

    def __init__(self, model: LoadedModel) -> None:
        self._model = model
        self.taps, _ = last_state(model.model, model.name)

    def start(self, folder: Path) -> StartingDraft:
        """Load finished embeddings, to be trained further.

        Raises:
            EngineError: they were made for another target or have other sizes, or the folder is damaged.
        """
        embeddings = load_look_ahead(folder, self._model).embeddings
        if len(embeddings) != POSITIONS:
            raise other_sizes(folder, self._model.name)
        return as_stated(folder, read_json(folder / CARD), {"weight": embeddings}, None)

    def trainee(self, vocabulary: Tensor, text: Iterable[Conversation] | None) -> PassTrainee:  # noqa: ARG002
        """Embeddings that equal the mean of the target's."""
        return PassTrainee(self._model, vocabulary)


class PassTrainee:
    """Look-ahead embeddings in training; attributes as of `EagleTrainee`.

    Args:
        model: their target, which is not trained.
        vocabulary: [V'], int64: the tokens that the loss is computed on; all of V can be drafted.
    """

    def __init__(self, model: LoadedModel, vocabulary: Tensor) -> None:
        self._model = model
        network: Any = model.model
        known: Tensor = network.get_input_embeddings().weight[vocabulary.to(network.device)].float()
        self._scores = output_rows(model, vocabulary)
        self.rate, self.four_bits = _RATE * float(known.std()), False
        self.network = nn.Embedding(POSITIONS, known.shape[1], _weight=known.mean(0).repeat(POSITIONS, 1))

    def loss(self, batch: Batch) -> tuple[Tensor, list[Agreement]]:
        """Loss at some places of some rows. After token i, embedding j is at position i + 1 + j, predicts i + 2 + j."""
        network: Any = self._model.model
        network.set_attn_implementation("eager")  # a runner sets its own attention, which needs its cache
        batch = batch.first_rows(_ROWS)
        tokens, length, device = batch.tokens, batch.tokens.shape[1], batch.tokens.device
        places = torch.randperm(length - POSITIONS - 1, device=device)[:_PLACES].sort().values
        with torch.no_grad():
            cache = network.base_model(input_ids=tokens, use_cache=True).past_key_values
        embedded = self.network.weight.repeat(len(tokens), len(places), 1).to(network.dtype)
        out: Tensor = network.base_model(
            inputs_embeds=embedded,
            position_ids=(places[:, None] + 1 + torch.arange(POSITIONS, device=device)).flatten()[None],
            attention_mask=self._mask(places, length),
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state
        drafted = out.view(len(tokens), len(places), POSITIONS, -1)
        losses, agreements = [], []
        for position in range(POSITIONS):
            truth = batch.truth(places + position + 1, drafted.shape[-1])
            loss, agreement = cross_entropy(drafted[:, :, position].flatten(0, 1), self._scores, truth)
            losses.append(loss)
            agreements.append(agreement)
        return faded(losses), agreements

    def assemble(self, config: EngineConfig) -> Assembly:
        """An engine's parts with a copy of the embeddings."""
        embeddings = self.network.weight.detach().clone()
        return put_together(config, self._model, look_ahead=LookAhead(embeddings, self._model.name))

    def save(self, folder: Path, made: Distilled, fingerprint: str) -> None:
        """Write embeddings and card, so that `--draft` loads them."""
        save_look_ahead(folder, self.network.weight, made.target, fingerprint, {"distilled": asdict(made)})

    def _mask(self, places: Tensor, length: int) -> Tensor | dict[str, Tensor]:
        """Attention mask of the embeddings, added to scores [1, 1, places x n, length + places x n]."""
        device, dtype, count = places.device, self._scores.dtype, len(places) * POSITIONS
        in_text = torch.arange(length, device=device) <= places.repeat_interleave(POSITIONS)[:, None]
        each = torch.ones(POSITIONS, POSITIONS, device=device).tril()
        own = torch.kron(torch.eye(len(places), device=device), each).bool()
        seen = torch.cat([in_text, own], dim=1)
        hidden = torch.zeros(count, length + count, dtype=dtype, device=device)
        mask = hidden.masked_fill(~seen, torch.finfo(dtype).min)[None, None]
        # Training texts are not longer than a sliding window.
        types = set(getattr(self._model.model.config.get_text_config(), "layer_types", None) or ())
        return dict.fromkeys(types, mask) if "sliding_attention" in types else mask
