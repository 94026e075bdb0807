"""Runner of an encoder-decoder: each source is encoded once, the decoder runs over a cache as any target does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from specchat.engine.backends.t5_network import T5Network
from specchat.engine.backends.tensor_backend import TensorBackend
from specchat.engine.cache.kv_cache import CacheView, KVCache, neighbours
from specchat.engine.decoding.tree_mask import TreeMask
from specchat.engine.decoding.tree_part import FedPlaces, TreePart, TreePlace
from specchat.engine.device.padding import padded_width
from specchat.engine.device.to_device import to_device


class EncoderDecoderBackend(TensorBackend):
    """One T5, the cache of its decoder, and what the decoder attends to of each slot's source; see
    `engine.backends.runner.Runner`.

    Positions and columns are the decoder's. Passes are not captured as CUDA graphs.

    Args:
        model: a `T5ForConditionalGeneration` of transformers, in evaluation mode, on its device.
        slots: sequences that fit at once.
        context: tokens of a source, and tokens of a reply.
        overhang: columns beyond the context, for padding of rows that draft less than others of their batch.

    Raises:
        EngineError: the cache does not fit into memory.
    """

    taps: tuple[int, ...] = ()
    short_context: int | None = None

    def __init__(self, model: Any, slots: int, context: int, overhang: int) -> None:
        self.device: torch.device = model.device
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)  # of this thread
        self.vocabulary = int(model.config.vocab_size)
        self.context = context
        self._model = model
        columns = context + overhang + 1
        self._network = T5Network(model, columns)
        shapes = self._network.shapes
        self.cache = KVCache.allocate(shapes, slots, columns, self.device, model.dtype)
        self._sources = KVCache.allocate(shapes, slots, context, self.device, model.dtype)
        super().__init__(slots, context, pool=None)
        self._lengths = [1] * slots
        """Tokens of each slot's source; one, of zeros, where nothing has been read."""

    @property
    def source_bytes(self) -> int:
        """Memory of what is kept of the sources."""
        return self._sources.bytes

    @property
    def performance_warnings(self) -> list[str]:
        """Passes on a GPU are launched kernel by kernel."""
        return ["its passes are not captured as CUDA graphs"] if self.device.type == "cuda" else []

    def width(self, length: int) -> int:
        """Tokens per row that a pass over `length` tokens is padded to."""
        return padded_width(length)

    @torch.inference_mode()
    def encode(self, slot: int, source: Sequence[int]) -> None:
        """Read the source of a slot: its keys and values for all layers of the decoder, in one pass of the encoder."""
        end, before = len(source), self._lengths[slot]
        for layer, read in enumerate(self._network.encode(to_device([source], self.device))):
            for stored, new in zip((self._sources.keys[layer], self._sources.values[layer]), read, strict=True):
                stored[slot, :, :end] = new[0]
                stored[slot, :, end:before] = 0  # a mask does not remove a NaN of an earlier source
        self._lengths[slot] = end

    def _forward(
        self, inputs: Tensor, slots: Sequence[int], starts: Sequence[int], tree_mask: TreeMask | None = None
    ) -> tuple[Tensor, Tensor | None]:
        states = self._run(inputs, slots, starts, tree_mask)
        return self._network.score(states[:, : inputs.shape[1]]), None

    @torch.inference_mode()
    def extend(self, places: Sequence[TreePlace]) -> Tensor:
        """Feed drafted tokens of trees whose ancestors the cache holds: logits [n, V]."""
        fed = FedPlaces.of(places, self.cache.columns, self.device)
        return self._network.score(fed.joined(self._run(fed.tokens, fed.slots, fed.starts, fed.part)))

    @torch.inference_mode()
    def prefill(
        self,
        tokens: Tensor,
        slots: Sequence[int],
        starts: Sequence[int],
        lengths: Sequence[int] | None = None,  # noqa: ARG002
    ) -> None:
        """Write keys and values of tokens [B, T] of replies."""
        self._run(tokens, slots, starts, None)

    def embedding_rows(self, tokens: Tensor) -> Tensor:
        """Rows [..., d] of the embedding of tokens [...]."""
        rows: Tensor = self._model.shared(tokens)
        return rows

    def output_rows(self, tokens: Tensor) -> Tensor:
        """Rows [n, d] of the output layer of tokens [n]."""
        weight: Tensor = self._model.lm_head.weight
        return weight[tokens]

    def _run(
        self, tokens: Tensor, slots: Sequence[int], starts: Sequence[int], tree: TreeMask | TreePart | None
    ) -> Tensor:
        """Hidden states [B, T or more, d] of the decoder."""
        width = padded_width(tokens.shape[1]) if tree is None else tree.width
        width = min(width, self.cache.columns - max(starts))  # the end of a reply may be near that of the cache
        tokens = functional.pad(tokens, (0, width - tokens.shape[1]))
        first = to_device(starts, self.device)[:, None]
        written = first + torch.arange(width, device=self.device)
        view = CacheView(self.cache, slots, starts, written, gathers=True)
        bias = self._bias(written, torch.arange(view.length, device=self.device), tree)
        longest = max(self._lengths[slot] for slot in slots)
        rows = self._rows(slots)

        def remember(layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
            return view.update(keys, values, layer)

        def recall(layer: int) -> tuple[Tensor, Tensor]:
            return self._sources.keys[layer][rows, :, :longest], self._sources.values[layer][rows, :, :longest]

        return self._network.decode(tokens, bias, remember, recall, self._visible(slots, longest))

    def _bias(self, written: Tensor, columns: Tensor, tree: TreeMask | TreePart | None) -> Tensor:
        """Bias [B, H, T, S] of tokens that are written to columns [B, T]; in a chain these are the positions."""
        if tree is None:
            seen = columns <= written[:, None, :, None]
            return self._network.bias(written, columns.expand(len(written), -1), seen)
        first = written[:, :1] if isinstance(tree, TreeMask) else tree.first[:, None]
        place = columns - first
        depths = tree.depths.gather(1, place.clamp(0, tree.depths.shape[1] - 1))
        positions = torch.where((place >= 0) & (place < tree.depths.shape[1]), first + depths, columns)
        return self._network.bias(tree.positions(written), positions, tree.visibility(written, columns, None))

    def _rows(self, slots: Sequence[int]) -> slice | Tensor:
        """What picks the slots of a pass: a part of the cache where they are neighbours, else copies."""
        if len(neighbours(slots)) == 1:
            return slice(slots[0], slots[-1] + 1)
        return to_device(slots, self.device)

    def _visible(self, slots: Sequence[int], longest: int) -> Tensor | None:
        lengths = [self._lengths[slot] for slot in slots]
        if min(lengths) == longest:
            return None
        ends = to_device(lengths, self.device)
        return (torch.arange(longest, device=self.device) < ends[:, None])[:, None, None]
