"""What rounds and drafters ask of a model with a cache, whatever computes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from specchat.engine.backends.cuda_graphs import GraphRunner
from specchat.engine.cache.kv_cache import KVCache
from specchat.engine.decoding.tree_mask import TreeMask
from specchat.engine.decoding.tree_part import TreePlace


class Runner(Protocol):
    """One model and its cache: `ModelRunner` on modelling code of transformers, `QuantizedRunner` on our kernels,
    `EncoderDecoderRunner` on the layers of a T5."""

    cache: KVCache
    context: int
    """Tokens per row."""
    device: torch.device
    vocabulary: int
    """Width of the logits."""
    taps: tuple[int, ...]
    """Depths of the hidden states that are handed out: 0 the embeddings, the last one normed."""
    short_context: int | None
    """Context of the short set of rotary factors, where the model has two and runs with the long one."""

    @property
    def graph_runner(self) -> GraphRunner | None:
        """Passes of fixed shape; None on a CPU."""

    @property
    def hindrances(self) -> list[str]:
        """What keeps passes from being as fast as they could be, a clause each."""

    @property
    def branches(self) -> bool:
        """Whether drafts may be trees."""

    def width(self, length: int) -> int:
        """Tokens per row that a round's pass over `length` of them is padded to, and costs as much as."""

    def forward(self, tokens: Tensor, slots: Sequence[int], starts: Sequence[int]) -> Tensor:
        """Logits [B, T, V] of tokens [B, T], int64, that stand in these slots from these positions on."""

    def forward_tapped(
        self,
        tokens: Tensor,
        slots: Sequence[int],
        starts: Sequence[int],
        tree_mask: TreeMask | None = None,
        lengths: Sequence[int] | None = None,
        entered: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """As `forward`, with the tapped hidden states [B, T, taps x hidden] beside the logits.

        On a GPU both are there until the next pass.

        Args:
            tokens: [B, T], int64, on the device.
            slots: the slot of each row.
            starts: the position of each row's first token.
            tree_mask: of rows that are trees; None where all are chains.
            lengths: how many of each row's tokens count; what comes out behind them means nothing, and is a number.
            entered: [B, T, d], embeddings to read instead of those of the tokens.
        """

    def extend(self, places: Sequence[TreePlace]) -> Tensor:
        """Feed drafted tokens behind those of their trees that the cache holds: logits [n, V] of n places, which hold
        until the next pass.

        Those of a row are next to each other, in consecutive columns.
        """

    def forward_as_it_comes(self, tokens: Tensor, slots: Sequence[int], starts: Sequence[int]) -> Tensor:
        """As `forward`, in the shape that is fastest, whatever that does to the last bits."""

    def capture(self) -> None:
        """On a GPU, capture the passes that rounds can meet, so that no reply waits for one."""

    def prefill(
        self, tokens: Tensor, slots: Sequence[int], starts: Sequence[int], lengths: Sequence[int] | None = None
    ) -> Tensor | None:
        """Feed tokens [B, T] for their keys and values, and their tapped hidden states; `lengths` as above."""

    def embedding_rows(self, tokens: Tensor) -> Tensor:
        """Rows [..., d] of the embedding, as they are stored, of tokens [...]."""

    def output_rows(self, tokens: Tensor) -> Tensor:
        """Rows [n, d] of the output layer, of tokens [n]."""
