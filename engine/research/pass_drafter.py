"""PaSS drafter: parallel speculative sampling (Monea et al. 2023, arXiv 2311.13581).

The target drafts its own continuation, all positions in one pass over the last token and trained look-ahead
embeddings: after the last token it gives the distribution of the next one, after the i-th embedding that of the token
i places further on. `specchat distill --kind pass` trains them: `look-ahead.safetensors`, and `look-ahead.json` with
the target that they are for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specchat.engine.decoding.backend import Backend
from specchat.engine.decoding.draft import Draft, RowOrder
from specchat.engine.decoding.drafter import Drafter
from specchat.engine.device.device import to_device
from specchat.engine.drafters.build_context import BuildContext
from specchat.engine.drafters.model_steps import ModelSteps, drafted_chains
from specchat.engine.drafters.part_folder import PartFolder
from specchat.engine.drafters.published.weights import hidden_size
from specchat.engine.errors import EngineError, check
from specchat.engine.models.packed.load import Model, PackedModel
from specchat.engine.sequence.sequence import SequenceState

CARD, WEIGHTS, _NAME = "look-ahead.json", "look-ahead.safetensors", "embeddings"
_FOLDER = PartFolder("look-ahead embeddings", CARD, WEIGHTS, "specchat distill --kind pass")


class PassDrafter(Drafter):
    """The target as its own draft, by look-ahead embeddings. Drafts are chains.

    Args:
        embeddings: [n, d]; drafts have up to n + 1 positions.
        target: drafts, in the cache that it verifies with.
    """

    name = "pass"

    def __init__(self, embeddings: Tensor, target: Backend) -> None:
        self._embeddings = embeddings.to(target.device)
        self._target = target
        self._steps = ModelSteps(target.forward, target.graphs(128), target.penalties, target.vocabulary)

    @torch.inference_mode()
    def propose(self, orders: Sequence[RowOrder]) -> list[Draft]:
        """One token for each position; q is kept of rows that draw their drafts."""
        rows = [order.row for order in orders]
        steps = min(max(order.gamma for order in orders), len(self._embeddings) + 1)
        predicted = self._predict(rows, steps)
        return drafted_chains(orders, *self._steps.chain(rows, lambda step, _: predicted[:, step : step + 1], steps))

    def _predict(self, rows: Sequence[SequenceState], positions: int) -> Tensor:
        """Logits [B, positions, V], float32, of the tokens that follow each row.

        What the pass writes lies beyond the rows' tokens, and the next pass overwrites it.
        """
        target = self._target
        last = to_device([[row.tokens[-1]] for row in rows], target.device)
        embedded = target.embedding_rows(last)
        ahead = self._embeddings[: positions - 1].to(embedded).expand(len(rows), -1, -1)
        slots, starts = [row.slot for row in rows], [row.cached for row in rows]
        logits = target.forward(torch.cat([embedded, ahead], 1), slots, starts)
        return logits[: len(rows), :positions].float()


@dataclass(frozen=True, slots=True)
class LookAhead:
    """Trained embeddings of one target."""

    embeddings: Tensor
    """[n, d], float32: the first stands for the next token, and so on."""
    name: str
    """For display."""
    weight_bytes: int = 0
    taps: tuple[int, ...] = ()


def save_look_ahead(folder: Path, embeddings: Tensor, target: str, fingerprint: str, about: Mapping[str, Any]) -> None:
    """Write look-ahead embeddings.

    Args:
        folder: made if it is not there.
        embeddings: [n, d].
        target: display name of the target.
        fingerprint: of the target (`engine.models.load.fingerprint`).
        about: what else to say about them.

    Raises:
        EngineError: the disk is full, or not to be written.
    """
    card = {"format": _FOLDER.version, "target": target, "fingerprint": fingerprint, **about}
    _FOLDER.write(folder, {_NAME: embeddings.detach().float().contiguous().cpu()}, card)


def load_look_ahead(folder: Path, target: Model) -> LookAhead:
    """Load look-ahead embeddings for a target.

    Raises:
        EngineError: they were made for another target, or the folder is broken.
    """
    card: dict[str, Any] = _FOLDER.read_card(folder, dict)
    if card.get("fingerprint") != target.fingerprint:
        raise EngineError(
            f"the look-ahead embeddings {folder} were made for {card.get('target')}, with other weights than "
            f"{target.name} has: make some for this target with {_FOLDER.command}"
        )
    with _FOLDER.reading(folder) as tensors:
        embeddings = tensors[_NAME]
        if embeddings.ndim != 2 or not len(embeddings) or embeddings.shape[1] != hidden_size(target):
            raise ValueError(f"a shape of {list(embeddings.shape)} is none of this target's")
        if not bool(embeddings.isfinite().all()):
            raise ValueError("some of its numbers are none")
    return LookAhead(embeddings.float(), f"look-ahead for {card.get('target')}")


def build(context: BuildContext, name: str) -> PassDrafter:  # noqa: ARG001
    """The drafter for an engine.

    Raises:
        EngineError: the target's passes cannot read embeddings as in training.
    """
    model, target = context.model, context.target
    if not target.capabilities.trees:
        raise EngineError(
            "look-ahead embeddings need passes over trees, which exact mode and recurrent layers do not have: choose "
            "another draft"
        )
    told = f"{model.name} scales its embeddings, and look-ahead embeddings are not: choose another draft for it"
    check(not isinstance(model, PackedModel) or model.shape.embedding_scale == 1, told)
    return PassDrafter(context.parts["look_ahead"].embeddings, target)
