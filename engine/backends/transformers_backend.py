"""Backend on transformers' modelling code: forward passes of a causal language model over its KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from specchat.engine.backends import attention, token_product
from specchat.engine.backends.batch_invariant import BatchInvariantPasses
from specchat.engine.backends.captured_passes import CapturedPasses, compile_layers
from specchat.engine.backends.modelling_code import fix_longrope, record_states
from specchat.engine.backends.tensor_acceptance import TensorOutcomes
from specchat.engine.backends.tensor_backend import TensorBackend
from specchat.engine.cache.block_pool import BlockPool
from specchat.engine.cache.cache_probe import CacheProbe
from specchat.engine.cache.kv_cache import CacheView, KVCache, StaticView
from specchat.engine.cache.recurrent_states import RecurrentStates
from specchat.engine.decoding.backend import Capabilities
from specchat.engine.decoding.draft import Support
from specchat.engine.decoding.tree_mask import FedPlaces, TreeMask, TreePart, TreePlace
from specchat.engine.device import gpu
from specchat.engine.device.device import CAPTURED, captured_width, padded_width, to_device
from specchat.engine.device.graphs import GraphPool, Graphs
from specchat.engine.errors import EngineError, first_line
from specchat.engine.models.linear_layers import join_layers
from specchat.engine.models.load import LoadedModel, fingerprint
from specchat.engine.models.model_config import OTHER_WAYS, cache_argument
from specchat.engine.sampling.penalties import Penalties
from specchat.engine.sequence.sequence import SequenceState


def build(model: LoadedModel, *sizes: Any, **options: Any) -> TransformersBackend:
    """Backend of a loaded model; further arguments as for `TransformersBackend`."""
    return TransformersBackend(model.model, *sizes, **options)


class TransformersBackend(TensorBackend):
    """Backend on transformers' modelling code (`engine.decoding.backend.Backend`), on any device.

    Passes run eagerly on a CPU, as CUDA graphs on a GPU (`captured_passes`), or batch-invariant (`batch_invariant`).

    Args:
        model: a causal language model of transformers, in evaluation mode, on its device.
        slots: sequences the cache holds.
        context: tokens per slot.
        overhang: columns beyond the context, for padding of rows that draft less than others of their batch.
        taps: depths of the hidden states to return with every pass (0 the embeddings, the last one normed).
        exact: whether passes other than prefill are batch-invariant.
        pool: blocks of the cache, of the target if this is a draft model; its own if None.

    Raises:
        EngineError: the cache does not fit into memory, the model cannot run with one, or its weights are in use with
            other rotary factors.
    """

    def __init__(
        self,
        model: Any,
        slots: int,
        context: int,
        overhang: int,
        taps: Sequence[int] = (),
        *,
        exact: bool = False,
        pool: BlockPool | None = None,
    ) -> None:
        self.model = model
        self.taps = tuple(taps)
        self._cache_argument = cache_argument(model.forward)
        self.config = model.config.get_text_config()
        self.device: torch.device = model.device
        self.vocabulary = int(self.config.vocab_size)
        on_gpu = self.device.type == "cuda"
        self._no_token_kernel: str | None = None
        """Why `engine.backends.token_product` cannot be used on a GPU; None if it can."""
        if on_gpu:
            torch.cuda.set_device(self.device)  # of this thread: streams and graphs are made on it
            torch.backends.cuda.enable_cudnn_sdp(False)  # it plans anew for each shape, 0.4 s each time
            fingerprint(model)  # of the weights by the names that they have now
            join_layers(model)
            self._no_token_kernel = token_product.use_token_kernel(model)
        self.context = context
        self.short_context = fix_longrope(model, context, self)
        folds = _use_slot_attention(model, self.config)
        self._masks = attention.AttentionMasks(self.config, model.dtype, self.device, folds=folds)
        probe = _probed(model, self._masks)
        self.states = RecurrentStates(probe.states, slots, self.device) if probe.states else None
        captures = on_gpu and self.states is None
        self.capabilities = Capabilities(trees=not exact and self.states is None, captured=captures)
        self._gathers = not probe.attention_alone_reads
        """Whether attention takes keys and values by row."""
        plain = folds and not (exact or self.states or self._gathers)
        self.in_place = plain and gpu.has_triton(self.device)
        """Whether passes of fixed shape attend by `engine.backends.cache_attention`."""
        self._not_in_place: str | None = None
        # The last column never holds a token: padding rows of a CUDA graph write there.
        columns = context + overhang + 1
        shapes = [probe.shapes.get(layer, (0, 0, 0, 0)) for layer in range(max(probe.shapes, default=-1) + 1)]
        self.cache = KVCache(shapes, slots, columns, self.device, model.dtype, states=self.states, pool=pool)
        graphs = GraphPool(self.device, capture=True) if captures else None
        compiled = graphs is not None and not exact and compile_layers(model)
        captured = Graphs(self.device, slots, graphs)
        passes = CapturedPasses(self.cache, self._step, captured, compiled=compiled, trees=not exact)
        self.captured = passes if captures else None
        self._invariant = BatchInvariantPasses(passes) if exact else None
        super().__init__(slots, Penalties(slots, context, self.device), graphs)

    @property
    def performance_warnings(self) -> list[str]:
        """Why passes on a GPU are slower than they could be, one clause each."""
        passes, stores = self.captured, self.device.type == "cuda" and self.states
        reasons = {
            "its passes cannot all be captured as CUDA graphs": self.graph_pool and self.graph_pool.not_captured,
            "its attention kernel cannot be used": self._not_in_place,
            "its kernel for products of one token cannot be used": self._no_token_kernel,
            "its layers cannot be compiled": passes and passes.not_compiled,
            "its passes are not captured as CUDA graphs": stores and "its recurrent layers store a state per token",
        }
        return [f"{clause} ({reason})" for clause, reason in reasons.items() if reason]

    @property
    def graph_bytes(self) -> int:
        """Memory of inputs and results of captured graphs."""
        return super().graph_bytes + (self.captured.graphs.bytes if self.captured else 0)

    def width(self, length: int) -> int:
        """Tokens per row that a pass over `length` tokens is padded to."""
        if self._invariant or self.states:
            return length
        return captured_width(length) if self.captured else padded_width(length)

    @torch.inference_mode()
    def forward_fast(self, tokens: Tensor, slots: Sequence[int], starts: Sequence[int]) -> Tensor:
        """Like `forward`, without batch invariance."""
        return self._forward(tokens, slots, starts, invariant=False)[0]

    @torch.inference_mode()
    def prefill(
        self, tokens: Tensor, slots: Sequence[int], starts: Sequence[int], lengths: Sequence[int] | None = None
    ) -> Tensor | None:
        """Write keys and values of tokens [B, T]; returns their tapped hidden states [B, T, taps x hidden size]."""
        if self.states:
            return self.states.prefill(self._read, tokens, slots, starts, lengths or [tokens.shape[1]] * len(slots))
        return self._read(tokens, slots, starts)

    def _read(self, tokens: Tensor, slots: Sequence[int], starts: Sequence[int]) -> Tensor | None:
        return self._tapped(self._run(self.model.base_model, tokens, slots, starts), tokens.shape[1])

    @torch.inference_mode()
    def extend(self, places: Sequence[TreePlace]) -> Tensor:
        """Feed drafted tokens of trees whose ancestors the cache holds: logits [n, V]."""
        fed = FedPlaces.of(places, self.cache.columns, self.device)
        return fed.joined(self._run(self.model, fed.tokens, fed.slots, fed.starts, fed.part).logits)

    @torch.inference_mode()
    def warm_up(self, supports: Sequence[Support | None] = ()) -> None:
        """Run passes over one and several tokens, so that kernels are chosen.

        On a GPU, plan to capture the passes and verdicts that rounds can meet.

        Args:
            supports: what drafters draw trees from.
        """
        if not self.captured:
            super().warm_up(supports)
            return
        (self._invariant or self.captured).plan()
        self._acceptance.plan(self.vocabulary, supports if self.capabilities.trees else ())

    def keep(self, rows: Sequence[SequenceState], outcomes: TensorOutcomes) -> None:
        """Move keys and values of accepted branches to consecutive columns; forget states before the round."""
        super().keep(rows, outcomes)
        if self.states:
            for row in rows:
                self.states.begin_round(row.slot, row.cached)

    def embedding_rows(self, tokens: Tensor) -> Tensor:
        """Rows [..., d] of the embedding of tokens [...]."""
        embedding = self.model.get_input_embeddings()
        if isinstance(embedding, nn.Embedding):  # without the factor that some families' embeddings add
            return functional.embedding(tokens, embedding.weight)
        rows: Tensor = embedding(tokens)
        return rows

    def output_rows(self, tokens: Tensor) -> Tensor:
        """Rows [n, d] of the output layer of tokens [n]."""
        if getattr(self.model.config, "tie_word_embeddings", False):  # the plain table is available
            return self.embedding_rows(tokens)
        weight: Tensor = self.model.get_output_embeddings().weight
        return weight[tokens]

    def output_layer(self) -> nn.Module:
        """The output layer."""
        layer: nn.Module = self.model.get_output_embeddings()
        return layer

    def _forward(
        self,
        inputs: Tensor,
        slots: Sequence[int],
        starts: Sequence[int],
        tree_mask: TreeMask | None = None,
        *,
        invariant: bool = True,
    ) -> tuple[Tensor, Tensor | None]:
        """Logits and tapped states [B, T, …].

        With a tree mask the tokens are trees: they are written to consecutive columns, and the mask gives their
        positions and what they attend to; `keep` moves the accepted ones. The mask may be padded to the `width` of the
        pass. Embeddings are never a pass of fixed shape.
        """
        if not inputs.is_floating_point():
            if self._invariant and invariant:
                return self._invariant.forward(inputs, slots, starts, tree_mask)
            if self.captured and inputs.shape[1] <= CAPTURED[-1]:
                return self.captured.forward(inputs, slots, starts, tree_mask)
        out = self._run(self.model, inputs, slots, starts, tree_mask)
        return out.logits[:, : inputs.shape[1]], self._tapped(out, inputs.shape[1])

    def _run(
        self,
        model: Any,
        inputs: Tensor,
        slots: Sequence[int],
        starts: Sequence[int],
        tree_mask: TreeMask | TreePart | None = None,
    ) -> Any:
        width = padded_width(inputs.shape[1]) if tree_mask is None else tree_mask.width
        if self.states:  # each token costs its recurrence
            width = inputs.shape[1]
        room = self.cache.columns - max(starts)  # the end of a prompt may be near that of the cache
        inputs = functional.pad(inputs, (*[0, 0] * (inputs.dim() - 2), 0, min(width, room) - inputs.shape[1]))
        first = to_device(starts, self.device)
        columns = first[:, None] + torch.arange(inputs.shape[1], device=self.device)
        view = CacheView(self.cache, slots, starts, columns, gathers=self._gathers)
        # Rows that begin at one column and are chains: their masks are the same.
        alike = tree_mask is None and len(set(starts)) == 1 and self._masks.are_causal(view.length)
        with attention.laid_out(attention.PassLayout(view.places, alike)):
            return self._call(model, inputs, columns, view, tree_mask)

    def _step(
        self, tokens: Tensor, columns: Tensor, view: StaticView, tree_mask: TreeMask | TreePart | None = None
    ) -> tuple[Tensor, Tensor | None]:
        view.whole = self.in_place
        try:
            out = self._call(self.model, tokens, columns, view, tree_mask)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # a compiler fails in many ways, with each new shape
            if not self.in_place or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
                raise
            self.in_place = view.whole = False
            self._not_in_place = first_line(error)
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
        chains the columns are the positions."""
        positions = columns if tree_mask is None else tree_mask.positions(columns)
        run = partial(
            model,
            **{"inputs_embeds" if inputs.is_floating_point() else "input_ids": inputs},
            position_ids=positions.clamp(max=self.context - 1),
            attention_mask=self._masks.of(columns, view, tree_mask),
            **self._masks.rows(columns, view),
            use_cache=True,
            output_hidden_states=bool(self.taps),
        )
        if self.states is None:
            return run(**{self._cache_argument: view})
        slots, starts = view.slots.tolist(), columns[:, 0].tolist()
        with self.states.reading(slots, starts, columns.shape[1], view) as states:
            return run(**{self._cache_argument: states})


def _use_slot_attention(model: Any, config: Any) -> bool:
    """Switch on `slot_attention` if it is right for a model; others need their own (eager) attention."""
    special = any(getattr(config, name, None) for name in ("attn_logit_softcapping", "attention_chunk_size"))
    if special or not getattr(model, "_supports_sdpa", False):
        model.set_attn_implementation("eager")
        return False
    model.set_attn_implementation(attention.NAME)
    return True


@torch.inference_mode()
def _probed(model: Any, masks: attention.AttentionMasks) -> CacheProbe:
    """KV cache shape of each layer and what reads from it, observed by feeding one token.

    Raises:
        EngineError: the model cannot run with a cache, or has states that cannot be taken back.
    """
    probe, token = CacheProbe(), torch.zeros(1, 1, dtype=torch.long, device=model.device)
    heads: dict[int, int] = {}
    try:
        with attention.laid_out(attention.PassLayout(folded=heads)):
            model.base_model(
                input_ids=token,
                position_ids=torch.zeros_like(token),
                attention_mask=masks.of(torch.zeros_like(token), probe),
                **{cache_argument(model.base_model.forward): probe},
                use_cache=True,
            )
    except Exception as error:  # this call runs modelling code of any kind
        kind = getattr(model.config.get_text_config(), "model_type", type(model).__name__)
        cause = f" ({first_line(error)})" if isinstance(error, RuntimeError) else ""  # others are of the code
        raise EngineError(f"models of type {kind} keep a state that is not supported{cause}: {OTHER_WAYS}") from error
    unknown = record_states(model, {layer for layer, state in probe.states if state == "recurrent"})
    attends = len(probe.shapes) == model.config.get_text_config().num_hidden_layers  # in all layers: Granite 4 dense
    if unknown or (model._is_stateful and not (probe.states or attends)):
        kind = model.config.get_text_config().model_type
        raise EngineError(
            f"models of type {kind} keep a recurrent state that cannot be taken back with a rejected token: "
            f"{OTHER_WAYS}"
        )
    masks.learn(heads)
    return probe
