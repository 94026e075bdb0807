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

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from specchat.engine.config import EngineConfig
from specchat.engine.drafters.published.find import CONFIG
from specchat.engine.drafters.published.load import FINGERPRINT, TARGET, read_published
from specchat.engine.drafters.published.medusa import WEIGHTS, MedusaHeads, save_medusa
from specchat.engine.errors import check
from specchat.engine.models.checkpoint import read_json
from specchat.engine.models.load import LoadedModel
from specchat.engine.models.model_config import RECURRENT_LAYERS, cache_argument
from specchat.engine.request import DEFAULT_GAMMA
from specchat.engine.research.pass_drafter import CARD, LookAhead, PassDrafter, load_look_ahead, save_look_ahead
from specchat.engine.research.pass_drafter import WEIGHTS as LOOK_AHEAD_WEIGHTS
from specchat.engine.tools.distill.text import Conversation
from specchat.engine.tools.distill.trainer import Batch, Draft, cross_entropy, positions_loss
from specchat.engine.tools.distill.work_folder import Distilled, StartingDraft, as_stated, other_sizes
from specchat.engine.worker.assembly import Assembly, assemble_loaded

POSITIONS = DEFAULT_GAMMA
"""Medusa heads of a target, and look-ahead embeddings."""
_BLOCKS = 1
"""Residual blocks per head, as in the published heads."""
_SHARE = 0.4
"""Fraction of positions of a batch per update of Medusa heads: neighbours teach much the same."""
_ROWS, _PLACES = 2, 24
"""Rows of a batch per update of embeddings, and places per row that embeddings follow: the whole target is run."""
_RATE = 0.05
"""Peak learning rate of embeddings, in standard deviations of the target's embeddings: few weights, few updates."""


class Medusa(Draft):
    """Medusa heads."""

    noun = "Medusa heads"
    files = (WEIGHTS, CONFIG)

    def start(self, folder: Path) -> StartingDraft:
        """Load finished heads, to be trained further."""
        heads, vocabulary = read_published(folder, self.model)
        sizes = (len(heads.heads), heads.blocks, heads.shared) if isinstance(heads, MedusaHeads) else None
        if sizes != (POSITIONS, _BLOCKS, True):
            raise other_sizes(folder, self.model.name)
        return as_stated(folder, read_json(folder / CONFIG), heads.state_dict(), vocabulary)

    def new_network(self, text: Iterable[Conversation] | None) -> nn.Module:  # noqa: ARG002
        """Heads that return the target's hidden state unchanged."""
        heads = MedusaHeads(POSITIONS, _BLOCKS, self.hidden, len(self.vocabulary), *self.taps, shared=True)
        for weight in heads.parameters():
            nn.init.zeros_(weight)
        return heads

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Loss of all heads at some positions. From the state at token i, head k drafts token i + 2 + k."""
        count, device = batch.tokens.shape[1] - POSITIONS - 1, batch.tokens.device
        anchors = torch.randperm(count, device=device)[: max(1, int(_SHARE * count))]
        states = batch.tapped[:, anchors].float()
        drafts = ((self.network(states, head), anchors + head + 1) for head in range(POSITIONS))
        return positions_loss(drafts, self.scores, batch, cross_entropy)

    def save(self, folder: Path, made: Distilled) -> None:
        """Write them in the layout of published Medusa heads."""
        about = {TARGET: made.target, FINGERPRINT: self.model.fingerprint, "distilled": asdict(made)}
        save_medusa(folder, self.network, self.vocabulary, about)


class Pass(Draft):
    """Look-ahead embeddings. All of V can be drafted; the loss is computed on V' tokens."""

    noun = "Look-ahead embeddings"
    drafter = PassDrafter.name
    files = (LOOK_AHEAD_WEIGHTS, CARD)

    def __init__(self, model: LoadedModel) -> None:
        super().__init__(model)
        kinds = getattr(model.model.config.get_text_config(), "layer_types", None) or ()
        check(
            RECURRENT_LAYERS.isdisjoint(kinds),
            f"{model.name} has recurrent layers, whose passes cannot read look-ahead embeddings: distil a head for it",
        )

    def start(self, folder: Path) -> StartingDraft:
        """Load finished embeddings, to be trained further."""
        embeddings = load_look_ahead(folder, self.model).embeddings
        if len(embeddings) != POSITIONS:
            raise other_sizes(folder, self.model.name)
        return as_stated(folder, read_json(folder / CARD), {"weight": embeddings}, None)

    def new_network(self, text: Iterable[Conversation] | None) -> nn.Module:  # noqa: ARG002
        """Embeddings that equal the mean of the target's."""
        network: Any = self.model.model
        known: Tensor = network.get_input_embeddings().weight[self.vocabulary.to(network.device)].float()
        self.rate = _RATE * float(known.std())
        return nn.Embedding(POSITIONS, known.shape[1], _weight=known.mean(0).repeat(POSITIONS, 1))

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Loss at some places of some rows. After token i, embedding j is at position i + 1 + j, predicts i + 2 + j."""
        network: Any = self.model.model
        name = cache_argument(network.base_model.forward)
        network.set_attn_implementation("eager")  # a runner sets its own attention, which needs its cache
        batch = Batch(*(part[:_ROWS] for part in batch))
        tokens, length, device = batch.tokens, batch.tokens.shape[1], batch.tokens.device
        places = torch.randperm(length - POSITIONS - 1, device=device)[:_PLACES].sort().values
        with torch.no_grad():
            cache = getattr(network.base_model(input_ids=tokens, use_cache=True), name)
        out: Tensor = network.base_model(
            inputs_embeds=self.network.weight.repeat(len(tokens), len(places), 1).to(network.dtype),
            position_ids=(places[:, None] + 1 + torch.arange(POSITIONS, device=device)).flatten()[None],
            attention_mask=self._mask(places, length),
            **{name: cache},
            use_cache=True,
        ).last_hidden_state
        states = out.view(len(tokens), len(places), POSITIONS, -1).unbind(2)
        drafts = ((state, places + position + 1) for position, state in enumerate(states))
        return positions_loss(drafts, self.scores, batch, cross_entropy)

    def assemble(self, config: EngineConfig) -> Assembly:
        """An engine's parts with a copy of the embeddings."""
        embeddings = self.network.weight.detach().clone()
        return assemble_loaded(config, self.model, look_ahead=LookAhead(embeddings, self.model.name))

    def save(self, folder: Path, made: Distilled) -> None:
        """Write embeddings and card."""
        about = {"distilled": asdict(made)}
        save_look_ahead(folder, self.network.weight, made.target, self.model.fingerprint, about)

    def _mask(self, places: Tensor, length: int) -> Tensor | dict[str, Tensor]:
        """Attention mask of the embeddings, added to scores [1, 1, places x n, length + places x n]."""
        device, dtype, count = places.device, self.scores.dtype, len(places) * POSITIONS
        in_text = torch.arange(length, device=device) <= places.repeat_interleave(POSITIONS)[:, None]
        each = torch.ones(POSITIONS, POSITIONS, device=device).tril()
        own = torch.kron(torch.eye(len(places), device=device), each).bool()
        hidden = torch.zeros(count, length + count, dtype=dtype, device=device)
        mask = hidden.masked_fill(~torch.cat([in_text, own], dim=1), torch.finfo(dtype).min)[None, None]
        # Training texts are not longer than a sliding window.
        types = set(getattr(self.model.model.config.get_text_config(), "layer_types", None) or ())
        return dict.fromkeys(types, mask) if "sliding_attention" in types else mask
