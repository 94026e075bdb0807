"""Medusa heads (Cai et al. 2024): each predicts one position further from the target's last hidden state alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from specchat.engine.cache.block_pool import BlockPool
from specchat.engine.cache.kv_cache import lazy_zeros
from specchat.engine.decoding.backend import Backend
from specchat.engine.drafters.head.layer import HeadLayer, LayeredHead, Level, Rows, codes_of, target_output
from specchat.engine.drafters.part_folder import PartFolder, stored_weights
from specchat.engine.drafters.published.find import CONFIG, MEDUSA
from specchat.engine.drafters.published.weights import TO_TARGET, fill, hidden_size, read_vocabulary, require
from specchat.engine.kernels.packed_matrix import QuantizedLinear
from specchat.engine.models.packed.load import Model

WEIGHTS = "medusa_lm_head.safetensors"
SHARED_OUTPUT = "medusa_shared_output"
"""Key of config.json, ours: the target's output layer scores for all heads, so that none is stored."""


class MedusaHeads(LayeredHead):
    """Medusa heads of a target.

    Args:
        count: number of heads.
        blocks: number of residual blocks of a head.
        hidden: d, of the target.
        vocabulary: V', what they draft.
        depth: of the target's hidden state that they read, the last one.
        shared: whether the target's output layer scores for all of them; else each has its own.
    """

    def __init__(self, count: int, blocks: int, hidden: int, vocabulary: int, depth: int, *, shared: bool) -> None:
        super().__init__()
        self.hidden, self.taps = hidden, (depth,)
        self.blocks, self.shared = blocks, shared
        self.heads = nn.ModuleList(nn.ModuleList(_Block(hidden) for _ in range(blocks)) for _ in range(count))
        if not shared:
            for head in self.heads:
                assert isinstance(head, nn.ModuleList)
                head.append(nn.Linear(hidden, vocabulary, bias=False))

    def layer_of(self, vocabulary: Tensor, target: Backend) -> tuple[MedusaLayer, int]:
        """The layer for a target, and the bytes of what scores if that is not a part of the heads."""
        like = next((layer for layer in self.modules() if isinstance(layer, QuantizedLinear)), None)
        output, size = target_output(target, vocabulary, codes_of(like)) if self.shared else (None, 0)
        pool = target.cache.pool
        some = target.embedding_rows(vocabulary[:1])
        states = lazy_zeros((pool.slots, pool.columns, self.hidden), some.device, some.dtype)
        return MedusaLayer(self, output, states, pool), size

    def forward(self, state: Tensor, number: int) -> Tensor:
        """Logits [..., V'] of head `number` from the target's hidden states [..., d].

        Where the output layer is shared, the states [..., d] that it scores.
        """
        for part in self.heads[number].children():
            state = part(state)
        return state


class _Block(nn.Module):
    """x + SiLU(W x + b)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + functional.silu(self.linear(x))
        return out


class MedusaLayer(HeadLayer):
    """Heads with the target's last hidden states [slots, columns, d].

    Head i scores the i-th position of a draft: the target's own output layer has chosen the token before it, from the
    same state. All tokens of one depth of a tree therefore share their distribution.

    Args:
        heads: the network.
        output: the target's output layer of V' tokens, where it is shared; else None.
        states: without content yet.
        pool: blocks of the target's cache.
    """

    def __init__(self, heads: MedusaHeads, output: nn.Module | None, states: Tensor, pool: BlockPool) -> None:
        super().__init__([states], pool, window=1, deepest=len(heads.heads))
        self._heads, self._output = heads, output or nn.Identity()

    def read(self, rows: Rows, tokens: Tensor) -> Tensor:  # noqa: ARG002
        """The state after each row's last token [B, 1, d]; 0 where there is no row."""
        states = self.states[rows.slots, (rows.ends - 1).clamp_(min=0)]
        return states.masked_fill(rows.ends[:, None] == 0, 0.0)[:, None]

    def follow(self, rows: Rows, level: Level, outcome: Tensor, tokens: Tensor) -> Tensor:  # noqa: ARG002
        """Return the same states [B, P, d], whatever has been drafted."""
        return outcome

    def score(self, outcome: Tensor, depth: int) -> Tensor:
        """Logits of the head of this depth: computed once, as the P states of a row are the same."""
        logits: Tensor = self._output(self._heads(outcome[:, :1], depth))
        return logits.expand(-1, outcome.shape[1], -1)


def read_heads(config: Mapping[str, Any], tensors: dict[str, Tensor], target: Model) -> tuple[LayeredHead, Tensor]:
    """Heads from their config.json and tensors, and their vocabulary [V'].

    Raises:
        UnfitError: there are no Medusa heads, or they do not fit the target.
    """
    blocks = {name.split(".")[1] for name in tensors if name.endswith(".linear.weight")}
    heads = {name.split(".")[0] for name in tensors if name.split(".")[0].isdigit()}
    require(heads, "has no Medusa heads (0.0.linear.weight): fetch it again")
    count, size = target.vocab_size, config.get("draft_vocab_size")
    vocabulary = read_vocabulary(count if size is None else int(size), count, tensors)
    sizes = len(heads), len(blocks), hidden_size(target), len(vocabulary), target.layers
    with torch.device("meta"):
        network = MedusaHeads(*sizes, shared=bool(config.get(SHARED_OUTPUT, False)))
    fill(network, tensors, "", "heads.")
    return network, vocabulary


def save_medusa(folder: Path, network: MedusaHeads, vocabulary: Tensor, about: Mapping[str, Any]) -> None:
    """Write heads that share the target's output layer; config.json comes last, so that a folder with it is complete.

    Args:
        folder: made if it is not there.
        network: saved in bfloat16.
        vocabulary: [V'], int64: the tokens that they draft.
        about: what else config.json says.

    Raises:
        EngineError: the disk is full, or not to be written.
    """
    shift = vocabulary.cpu() - torch.arange(len(vocabulary))
    config = {
        MEDUSA: len(network.heads),
        "medusa_num_layers": network.blocks,
        SHARED_OUTPUT: True,
        "draft_vocab_size": len(vocabulary),
        **about,
    }
    tensors = {**stored_weights(network.heads), TO_TARGET: shift}
    PartFolder("Medusa heads", CONFIG, WEIGHTS).write(folder, tensors, config)
