"""Medusa heads (Cai et al. 2024): each predicts one position further from the target's last hidden state alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from specchat.engine.decoding.backend import Backend
from specchat.engine.decoding.tree import Tree
from specchat.engine.decoding.tree_mask import TreeMask
from specchat.engine.device.to_device import to_device
from specchat.engine.drafters.growing.scores import Scores
from specchat.engine.drafters.head.layer import whole
from specchat.engine.drafters.head.layers import LayeredHead, codes_of, target_output
from specchat.engine.drafters.head.states import States
from specchat.engine.drafters.published.layout import MEDUSA
from specchat.engine.drafters.published.load import TO_TARGET, hidden_size, read_vocabulary
from specchat.engine.errors import EngineError
from specchat.engine.files import make_folder, replacing
from specchat.engine.models.disk import disk_errors
from specchat.engine.models.load import LoadedModel
from specchat.engine.models.packed.load import PackedModel
from specchat.engine.sequence.sequence import SequenceState

WEIGHTS, CONFIG = "medusa_lm_head.safetensors", "config.json"
SHARED_OUTPUT = "medusa_shared_output"
"""Key of config.json, ours: the target's output layer scores for all heads, so that none is stored."""


@dataclass(frozen=True, slots=True)
class MedusaLayout:
    """Medusa heads: residual blocks and an output layer each."""

    heads: int
    blocks: int
    """Per head."""
    shared: bool = False
    """Whether the target's output layer scores for all of them; else each has its own."""


class MedusaHeads(LayeredHead):
    """All heads of a target.

    Args:
        layout: how many there are.
        hidden: d, of the target.
        vocabulary: V', what they draft.
        depth: of the target's hidden state that they read, the last one.
    """

    def __init__(self, layout: MedusaLayout, hidden: int, vocabulary: int, depth: int) -> None:
        super().__init__()
        self.hidden, self.taps = hidden, (depth,)
        self.blocks, self.shared = layout.blocks, layout.shared
        self.heads = nn.ModuleList(
            nn.ModuleList(_Block(hidden) for _ in range(layout.blocks)) for _ in range(layout.heads)
        )
        if not layout.shared:
            for head in self.heads:
                assert isinstance(head, nn.ModuleList)
                head.append(nn.Linear(hidden, vocabulary, bias=False))

    def layer_of(self, vocabulary: Tensor, target: Backend) -> tuple[MedusaLayer, int]:
        """The layer for a target, and the bytes of what scores if that is not a part of the heads."""
        output, size = None, 0
        if self.shared:
            codes = next((codes for codes in map(codes_of, self.modules()) if codes), None)
            output, size = target_output(target, vocabulary, codes)
        like = target.embedding_rows(vocabulary[:1])
        return MedusaLayer(self, output, like, target.cache.slots, target.cache.columns), size

    def forward(self, state: Tensor, number: int) -> Tensor:
        """From the target's hidden states [..., d], the logits [..., V'] of head `number`; [..., d] for the target's
        output layer where that is shared."""
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


class MedusaLayer:
    """The target's last hidden states [slots, columns, d], and what the heads say of them.

    Head i scores the i-th position of a draft: the target's own output layer has chosen the token before it, from the
    same state. All tokens of one depth of a tree therefore share their distribution.

    Args:
        heads: the network.
        output: the target's output layer of V' tokens, where it is shared; else None.
        like: of the target's type and on its device.
        slots: as many as the target's cache has.
        columns: as many as the target's cache has.
    """

    window = 1

    def __init__(self, heads: MedusaHeads, output: nn.Module | None, like: Tensor, slots: int, columns: int) -> None:
        self._heads = heads
        self._output = output or nn.Identity()
        self.deepest = len(heads.heads)
        self._states = States(like, slots, columns, heads.hidden)
        self._last: Tensor = like.new_empty(0)
        """[B, 1, d], the state after the last token of each row."""

    @property
    def bytes(self) -> int:
        """Memory of all slots."""
        return self._states.stored.nbytes

    def read_places(self, slots: Tensor, ends: Tensor, tokens: Tensor) -> Tensor:  # noqa: ARG002
        """The state after each row's last token [B, 1, d]; 0 where there is no row."""
        states = self._states.stored[slots, (ends - 1).clamp_(min=0)]
        return states.masked_fill(ends[:, None] == 0, 0.0)[:, None]

    def extend_places(
        self,
        slots: Tensor,  # noqa: ARG002
        ends: Tensor,  # noqa: ARG002
        tree_mask: TreeMask,  # noqa: ARG002
        index: Tensor,  # noqa: ARG002
        last: int,  # noqa: ARG002
        outcome: Tensor,
        tokens: Tensor,  # noqa: ARG002
    ) -> Tensor:
        """The same states [B, P, d], whatever has been drafted."""
        return outcome

    def score_places(self, outcome: Tensor, depth: int) -> Scores:
        """Scores of the head of this depth: computed once, as the P states of a row are the same."""
        return self._score(outcome[:, :1], depth, outcome.shape[1])

    def absorb(
        self,
        slots: Sequence[int],
        starts: Sequence[int],
        tapped: Tensor | Sequence[Tensor],
        lengths: Sequence[int] | None = None,
    ) -> None:
        """Keep the states of all T tokens."""
        del lengths  # what is not wanted is overwritten
        self._states.put(slots, starts, whole(tapped))

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the states of the first `length` tokens."""
        self._states.copy(source, target, length)

    def read(self, rows: Sequence[SequenceState], begins: Sequence[int], ends: Sequence[int]) -> Scores:  # noqa: ARG002
        """Scores of the first head."""
        states = self._states.stored
        slots = to_device([row.slot for row in rows], states.device)
        self._last = states[slots, to_device([end - 1 for end in ends], states.device)][:, None]
        return self._score(self._last, 0)

    def extend(
        self,
        rows: Sequence[SequenceState],  # noqa: ARG002
        tree: Tree,
        level: Sequence[int],
        parents: Sequence[int],  # noqa: ARG002
        tokens: Tensor,  # noqa: ARG002
    ) -> Scores:
        """Scores of the head of this depth, whatever has been drafted."""
        return self._score(self._last, tree.depths[level[0]], len(level))

    def _score(self, state: Tensor, head: int, count: int = 1) -> Scores:
        """Scores of a head for `count` places of states [B, 1, d]."""
        logits: Tensor = self._output(self._heads(state, head))
        return Scores(logits.expand(-1, count, -1))


def network_of(
    folder: Path, config: Mapping[str, Any], tensors: dict[str, Tensor], target: LoadedModel | PackedModel
) -> tuple[MedusaHeads, Tensor, dict[str, str]]:
    """Published heads without weights, their vocabulary [V'], and published prefixes of names with the network's.

    Raises:
        EngineError: there are no Medusa heads, or they do not fit the target.
    """
    blocks = {name.split(".")[1] for name in tensors if name.endswith(".linear.weight")}
    heads = {name.split(".")[0] for name in tensors if name.split(".")[0].isdigit()}
    if not heads:
        raise EngineError(f"the draft head {folder} has no Medusa heads (0.0.linear.weight): fetch it again")
    size = config.get("draft_vocab_size")
    layout = MedusaLayout(len(heads), len(blocks), bool(config.get(SHARED_OUTPUT, False)))
    vocabulary = read_vocabulary(folder, target.vocab_size if size is None else int(size), target.vocab_size, tensors)
    with torch.device("meta"):
        network = MedusaHeads(layout, hidden_size(target), len(vocabulary), target.layers)
    return network, vocabulary, {"": "heads."}


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
    weights = {
        name: weight.detach().to(torch.bfloat16).contiguous().cpu()
        for name, weight in network.heads.state_dict().items()
    }
    shift = vocabulary.cpu() - torch.arange(len(vocabulary))
    config = {
        MEDUSA: len(network.heads),
        "medusa_num_layers": network.blocks,
        SHARED_OUTPUT: True,
        "draft_vocab_size": len(vocabulary),
        **about,
    }
    with disk_errors(folder, "saving the Medusa heads"):
        make_folder(folder)
        with replacing(folder / WEIGHTS) as part:
            save_file({**weights, TO_TARGET: shift}, part)
        with replacing(folder / CONFIG) as part:
            part.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
