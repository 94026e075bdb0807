"""What draft steps of fixed shape ask of a head's layer: rows are known on the device only."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

from specchat.engine.decoding.tree_mask import TreeMask
from specchat.engine.drafters.growing.scores import Scores


@runtime_checkable
class PlacedLayer(Protocol):
    """A layer of a head (`engine.drafters.head.layer`) whose steps can be CUDA graphs."""

    @property
    def window(self) -> int:
        """Places that a place sees, itself included."""

    @property
    def deepest(self) -> int:
        """Positions it can draft for."""

    def read_places(self, slots: Tensor, ends: Tensor, tokens: Tensor) -> Tensor:
        """Read the last places of every row: what the first draft step scores with [B, 1, d].

        Args:
            slots: [B], int64.
            ends: [B], int64: a row's number of tokens less one; 0 where there is no row.
            tokens: [B, W], int64: the last W of each row, of which those count that it has.
        """

    def extend_places(
        self,
        slots: Tensor,
        ends: Tensor,
        tree_mask: TreeMask,
        index: Tensor,
        last: int,
        outcome: Tensor,
        tokens: Tensor,
    ) -> Tensor:
        """Continue after drafted tokens: what the next draft step scores with [B, P, d].

        Args:
            slots: [B], int64.
            ends: as for `read_places`.
            tree_mask: of the one tree, without padding.
            index: [P], int64, the tokens of the level; the highest is `last`.
            last: on the host.
            outcome: [B, P, d], what the step before scored with where these tokens were drafted.
            tokens: [B, P], int64, what they are.
        """

    def score_places(self, outcome: Tensor, depth: int) -> Scores:
        """Scores [B, P, V'] of what was read or continued with [B, P, d], for tokens of depth `depth` + 1."""
