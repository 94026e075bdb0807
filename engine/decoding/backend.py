"""Backend interface: one model with its KV cache, as rounds and drafters use it.

`specchat.engine.backends` has the implementations: packed CPU kernels, transformers on any device, and CUDA with
captured graphs. Padding, ragged passes and batch-invariant passes are internal to them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from specchat.engine.cache.kv_cache import KVCache
from specchat.engine.cache.paged_cache import PagedCache
from specchat.engine.decoding.draft import Support
from specchat.engine.decoding.tree_mask import TreePlace
from specchat.engine.device.device import Stopwatch
from specchat.engine.device.graphs import GraphPool, Graphs
from specchat.engine.kernels.packed_matrix import PackedMatrix
from specchat.engine.sampling.penalties import Penalties
from specchat.engine.sequence.sequence import SequenceState


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities of a backend, and the costs of its passes."""

    trees: bool = True
    """Whether drafts may branch."""
    ragged: bool = False
    """Whether rows of one pass may have different lengths without padding, so that a pass costs what its tokens do."""
    packed: bool = False
    """Whether weights are packed for the CPU kernels, which heads on the same target can use too."""
    captured: bool = False
    """Whether passes are captured as CUDA graphs."""
    rounds: int = 1
    """Most rounds that it can run in one call (`Runner.run`)."""
    prefixes: bool = True
    """Whether keys and values of a text's beginning serve every text that begins so."""


class Backend(ABC):
    """One model and its KV cache."""

    cache: KVCache | PagedCache
    capabilities = Capabilities()
    context: int
    """Tokens per row."""
    device: torch.device
    vocabulary: int
    """Width of the logits."""
    taps: tuple[int, ...] = ()
    """Depths of the hidden states that passes return: 0 the embeddings, the last one normed."""
    short_context: int | None = None
    """Context of the short set of rotary factors, where the model has two and runs with the long one."""
    penalties: Penalties
    """Bias and penalties of its rows; drafters share them, so that p and q see the same context."""
    graph_pool: GraphPool | None = None
    """Its captured and planned CUDA graphs."""

    @property
    def performance_warnings(self) -> list[str]:
        """Why passes are slower than they could be, one clause each."""
        return []

    @property
    def graph_bytes(self) -> int:
        """Memory of inputs and results of captured graphs."""
        return 0

    @cached_property
    def stopwatch(self) -> Stopwatch:
        """Times the parts of rounds."""
        return Stopwatch(self.device)

    def graphs(self, most: int) -> Graphs:
        """Captured functions for a drafter on the same device, `most` of them; eager ones where nothing is captured."""
        return Graphs(self.device, self.cache.slots, None, most)

    def admit(self, row: SequenceState) -> None:  # noqa: ARG002
        """A row starts in its slot.

        Raises:
            EngineError: its prompt cannot be read.
        """
        return

    def limit(self, row: SequenceState) -> int:  # noqa: ARG002
        """Most tokens of a row's prompt and reply together."""
        return self.context

    @abstractmethod
    def width(self, length: int) -> int:
        """Tokens per row that a pass over `length` of them is padded to, and costs as much as."""

    @abstractmethod
    def prefill(
        self, tokens: Tensor, slots: Sequence[int], starts: Sequence[int], lengths: Sequence[int] | None = None
    ) -> Tensor | None:
        """Write keys and values of prompt tokens.

        Args:
            tokens: [B, T], int64, on the device.
            slots: [B], cache slot of each row.
            starts: [B], position of each row's first token.
            lengths: [B], how many of each row's tokens count; None for all.

        Returns:
            Tapped hidden states [B, T, taps x hidden size], or None without taps.
        """

    @torch.inference_mode()
    def forward(self, inputs: Tensor, slots: Sequence[int], starts: Sequence[int]) -> Tensor:
        """Logits [B, T, V] of a plain pass, valid until the next pass.

        Args:
            inputs: token ids [B, T], int64, or embeddings [B, T, d], on the device.
            slots: [B], cache slot of each row.
            starts: [B], position of each row's first token.
        """
        return self.forward_with_states(inputs, slots, starts)[0]

    def forward_fast(self, inputs: Tensor, slots: Sequence[int], starts: Sequence[int]) -> Tensor:
        """Like `forward`, without batch invariance."""
        return self.forward(inputs, slots, starts)

    @abstractmethod
    def forward_with_states(
        self, inputs: Tensor, slots: Sequence[int], starts: Sequence[int]
    ) -> tuple[Tensor, Tensor | None]:
        """Like `forward`, with the tapped hidden states [B, T, taps x hidden size]."""

    @abstractmethod
    def extend(self, places: Sequence[TreePlace]) -> Tensor:
        """Feed drafted tokens of trees whose ancestors the cache holds: logits [n, V], valid until the next pass.

        Places of one row are neighbours, in consecutive columns.
        """

    @abstractmethod
    def warm_up(self, supports: Sequence[Support | None] = ()) -> None:
        """Run passes and, on a GPU, plan to capture the passes and verdicts that rounds can meet.

        Args:
            supports: what drafters draw trees from; None for the whole vocabulary.
        """

    def embedding_rows(self, tokens: Tensor) -> Tensor:
        """Rows [..., d] of the embedding of tokens [...], as they are stored."""
        raise NotImplementedError

    def output_rows(self, tokens: Tensor) -> Tensor:
        """Rows [n, d] of the output layer of tokens [n]."""
        raise NotImplementedError

    def output_layer(self) -> nn.Module:
        """The output layer: gives [..., V] of what it reads [..., d], without what some families do to logits."""
        raise NotImplementedError

    def packed_output(self) -> PackedMatrix | None:
        """The output layer [V, d] as packed codes; None where it has none."""
        return None
