"""Model runner: forward passes of a transformers model over its KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from specchat.engine.backends import attention, flex
from specchat.engine.backends.attention_masks import AttentionMasks
from specchat.engine.backends.batch_invariant import BatchInvariantRunner
from specchat.engine.backends.compile import compile_layers
from specchat.engine.backends.cuda_graphs import GraphRunner
from specchat.engine.backends.first_layers import first_layers
from specchat.engine.backends.graph_pool import GraphPool
from specchat.engine.backends.longrope import fix_longrope
from specchat.engine.cache.cache_probe import CacheProbe
from specchat.engine.cache.kv_cache import CacheView, KVCache
from specchat.engine.cache.static_view import StaticView
from specchat.engine.decoding.tree_mask import TreeMask
from specchat.engine.decoding.tree_part import FedPlaces, TreePart, TreePlace
from specchat.engine.device.padding import CAPTURED, captured_width, padded_width
from specchat.engine.device.to_device import to_device
from specchat.engine.errors import EngineError, first_line


class ModelRunner:
    """Runs one model over its own KV cache: tokens at given positions in, logits out.

    Args:
        model: a causal language model of transformers, in evaluation mode, on its device.
        slots: sequences the cache holds.
        context: tokens per slot.
        overhang: columns beyond the context, for padding of rows that draft less than others of their batch.
        taps: depths of the hidden states to return with every pass (0 the embeddings, the last one normed).
        exact: whether passes other than prefill are batch-invariant (`engine.backends.batch_invariant`).

    Raises:
        EngineError: the cache does not fit into memory, the model cannot run with one, or its weights are in use with
            other rotary factors.
    """

    def __init__(
        self, model: Any, slots: int, context: int, overhang: int, taps: Sequence[int] = (), *, exact: bool = False
    ) -> None:
        self.model = model
        self.taps = tuple(taps)
        self.config = model.config.get_text_config()
        self.device: torch.device = model.device
        self.vocabulary = int(self.config.vocab_size)
        self.branches = not exact
        self._exact = exact
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)  # of this thread: streams and graphs are made on it
        self.context = context
        self._limit = context - 1
        self.judges_all = True
        self.short_context = fix_longrope(model, context, self)
        """Context of the short set of rotary factors, where the model has two and runs with the long one."""
        folded = self._use_slot_attention()
        self._masks = AttentionMasks(self.config, folded, model.dtype, self.device)
        self.flex = folded > 0 and not exact and flex.is_available(self.device, self._head_size)
        """Whether passes of fixed shape attend by `engine.backends.flex`."""
        self._not_flex: str | None = None
        self._gathers = True
        """Whether attention takes keys and values by row; known once the cache's shapes are."""
        # The last column never holds a token: padding rows of a CUDA graph write there.
        columns = context + overhang + 1
        shapes = self._shapes()  # which may find that flex does not fit
        columns = -(-columns // flex.BLOCK) * flex.BLOCK if self.flex else columns
        self.cache = KVCache.allocate(shapes, slots, columns, self.device, model.dtype, paged=self.flex)
        self.graph_runner: GraphRunner | None = None
        """Passes of fixed shape, on a GPU."""
        on_gpu = self.device.type == "cuda"
        pool = GraphPool(self.device, capture=on_gpu)
        if on_gpu:
            self._compiled = not exact and compile_layers(model)
            self.graph_runner = GraphRunner(self.cache, self._step, pool, compiled=self._compiled, trees=self.branches)
        self._static = BatchInvariantRunner(self.cache, self._step, pool) if exact else self.graph_runner

    @torch.inference_mode()
    def forward(self, tokens: Tensor, slots: Sequence[int], starts: Sequence[int]) -> Tensor:
        """Forward pass over T tokens per row.

        Args:
            tokens: [B, T], int64, on the device.
            slots: [B], the slot of each row.
            starts: [B], the position of each row's first token.

        Returns:
            Logits [B, T, V].
        """
        return self.forward_tapped(tokens, slots, starts)[0]

    @torch.inference_mode()
    def forward_tapped(
        self,
        tokens: Tensor,
        slots: Sequence[int],
        starts: Sequence[int],
        tree_mask: TreeMask | None = None,
        lengths: Sequence[int] | None = None,  # noqa: ARG002
        entered: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """As `forward`, with the tapped hidden states [B, T, taps x hidden size] besides the logits.

        With a tree mask the tokens are trees instead of chains: they are written to consecutive columns, and the mask
        gives their positions and what they attend to; `KVCache.keep` moves the accepted ones to their places. The mask
        may be padded to the `width` of the pass already. A pass over what is `entered` is never one of fixed shape.
        """
        if self._static is not None and entered is None and (tokens.shape[1] <= CAPTURED[-1] or self._exact):
            return self._static.forward(tokens, slots, starts, tree_mask)
        inputs = tokens if entered is None else entered
        out = self._run(self.model, inputs, slots, starts, tree_mask)
        return out.logits[:, : inputs.shape[1]], self._tapped(out, inputs.shape[1])

    @torch.inference_mode()
    def prefill(
        self,
        tokens: Tensor,
        slots: Sequence[int],
        starts: Sequence[int],
        lengths: Sequence[int] | None = None,  # noqa: ARG002
    ) -> Tensor | None:
        """Write keys and values of tokens [B, T]; returns their tapped hidden states [B, T, taps x hidden size]."""
        return self._tapped(self._run(self.model.base_model, tokens, slots, starts), tokens.shape[1])

    @torch.inference_mode()
    def extend(self, places: Sequence[TreePlace]) -> Tensor:
        """Feed drafted tokens behind those of their trees that the cache holds: logits [n, V] of n places.

        Those of a row are next to each other, in consecutive columns.
        """
        fed = FedPlaces.of(places, self.cache.columns, self.device)
        return fed.joined(self._run(self.model, fed.tokens, fed.slots, fed.starts, fed.part).logits)

    def forward_as_it_comes(self, tokens: Tensor, slots: Sequence[int], starts: Sequence[int]) -> Tensor:
        """As `forward`, in the fastest shape, without batch invariance."""
        exact, self._static = self._static, self.graph_runner
        try:
            return self.forward(tokens, slots, starts)
        finally:
            self._static = exact

    def first_layers(self, count: int) -> ModelRunner:
        """Cut off behind its first layers, on the same cache; its own graphs are for draft steps alone.

        Raises:
            EngineError: its modelling code keeps layers elsewhere than others do.
        """
        part = copy(self)
        part.model, part.taps = first_layers(self.model, count), ()
        part._static = None
        if self.graph_runner is not None:
            part.graph_runner = GraphRunner(
                self.cache, part._step, self.graph_runner.pool, compiled=self._compiled, trees=False
            )
        return part

    def capture(self) -> None:
        """On a GPU, capture the passes that rounds can meet, so that no reply waits for one."""
        if isinstance(self._static, BatchInvariantRunner) and self.graph_runner is not None:
            self._static.capture()
        elif self.graph_runner is not None:
            self.graph_runner.capture(CAPTURED)

    def embedding_rows(self, tokens: Tensor) -> Tensor:
        """Rows [..., d] of the embedding of tokens [...]."""
        embedding = self.model.get_input_embeddings()
        if isinstance(embedding, nn.Embedding):  # without the factor that some families' embeddings add
            return functional.embedding(tokens, embedding.weight)
        rows: Tensor = embedding(tokens)
        return rows

    def output_rows(self, tokens: Tensor) -> Tensor:
        """Rows [n, d] of the output layer of tokens [n]."""
        if getattr(self.model.config, "tie_word_embeddings", False):  # the plain table is at hand
            return self.embedding_rows(tokens)
        weight: Tensor = self.model.get_output_embeddings().weight
        return weight[tokens]

    @property
    def _head_size(self) -> int:
        heads = max(getattr(self.config, "num_attention_heads", 1), 1)
        return int(getattr(self.config, "head_dim", None) or getattr(self.config, "hidden_size", 0) // heads)

    @property
    def hindrances(self) -> list[str]:
        """Why passes on a GPU are slower than they could be, one clause each; empty if they are not."""
        not_captured = self.graph_runner.pool.not_captured if self.graph_runner else None
        not_compiled = self.graph_runner.not_compiled if self.graph_runner else None
        return [
            *([f"its passes cannot all be captured as CUDA graphs ({not_captured})"] if not_captured else []),
            *([f"its attention cannot be compiled ({self._not_flex})"] if self._not_flex else []),
            *([f"its layers cannot be compiled ({not_compiled})"] if not_compiled else []),
        ]

    def width(self, length: int) -> int:
        """Tokens per row that a pass over `length` tokens is padded to."""
        if isinstance(self._static, BatchInvariantRunner):
            return length
        return padded_width(length) if self._static is None else captured_width(length)

    def _run(
        self,
        model: Any,
        inputs: Tensor,
        slots: Sequence[int],
        starts: Sequence[int],
        tree_mask: TreeMask | TreePart | None = None,
    ) -> Any:
        width = padded_width(inputs.shape[1]) if tree_mask is None else tree_mask.width
        room = self.cache.columns - max(starts)  # the end of a prompt may be near that of the cache
        inputs = functional.pad(inputs, (*[0, 0] * (inputs.dim() - 2), 0, min(width, room) - inputs.shape[1]))
        first = to_device(starts, self.device)
        columns = first[:, None] + torch.arange(inputs.shape[1], device=self.device)
        view = CacheView(self.cache, slots, starts, columns, gathers=self._gathers)
        with attention.scattered(view.runs):
            return self._call(model, inputs, columns, view, tree_mask)

    def _step(
        self, tokens: Tensor, columns: Tensor, view: StaticView, tree_mask: TreeMask | TreePart | None = None
    ) -> tuple[Tensor, Tensor | None]:
        view.paged = self.flex
        try:
            out = self._call(self.model, tokens, columns, view, tree_mask)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # a compiler fails in many ways, with each new shape
            if not self.flex:
                raise
            self.flex = view.paged = False
            self._not_flex = first_line(error)
            out = self._call(self.model, tokens, columns, view, tree_mask)
        return out.logits, self._tapped(out, tokens.shape[1])

    def _tapped(self, out: Any, length: int) -> Tensor | None:
        return torch.cat([out.hidden_states[i][:, :length] for i in self.taps], dim=-1) if self.taps else None

    def _call(
        self,
        model: Any,
        inputs: Tensor,
        columns: Tensor,
        view: CacheView | StaticView,
        tree_mask: TreeMask | TreePart | None = None,
    ) -> Any:
        """Run the model on tokens [B, T], or on what its first layer reads [B, T, d], written to columns [B, T]; for
        chains these are the positions."""
        positions = columns if tree_mask is None else tree_mask.positions(columns)
        return model(
            **{"inputs_embeds" if inputs.is_floating_point() else "input_ids": inputs},
            position_ids=positions.clamp(max=self._limit),
            attention_mask=self._masks.of(columns, view, tree_mask),
            past_key_values=view,
            use_cache=True,
            output_hidden_states=bool(self.taps),
        )

    def _use_slot_attention(self) -> int:
        """Switch on `slot_attention` and return H / G; return 0 for models that need their own (eager) attention."""
        heads = getattr(self.config, "num_attention_heads", 0)
        groups = getattr(self.config, "num_key_value_heads", None) or heads
        special = any(getattr(self.config, name, None) for name in ("attn_logit_softcapping", "attention_chunk_size"))
        if special or not getattr(self.model, "_supports_sdpa", False):
            self.model.set_attn_implementation("eager")
            return 0
        self.model.set_attn_implementation(attention.NAME)
        return int(heads // groups)

    @torch.inference_mode()
    def _shapes(self) -> list[tuple[int, int, int, int]]:
        """KV cache shape of each layer (see `KVCache`), observed by feeding one token; and what attention reads."""
        probe = CacheProbe()
        token = torch.zeros(1, 1, dtype=torch.long, device=self.device)
        try:
            self.model.base_model(
                input_ids=token,
                position_ids=torch.zeros_like(token),
                attention_mask=self._masks.of(torch.zeros_like(token), probe),
                past_key_values=probe,
                use_cache=True,
            )
        except Exception as error:  # any modelling code may be behind this call
            kind = getattr(self.config, "model_type", type(self.model).__name__)
            raise EngineError(
                f"models of type {kind} cannot be run with a slot cache ({error}): choose another"
            ) from error
        self._gathers = not probe.attention_alone_reads
        self.flex = self.flex and not self._gathers
        return [probe.shapes[i] for i in sorted(probe.shapes)]
