"""Backend of T5 (Raffel et al. 2020).

The encoder reads the prompt, the source; the decoder writes the reply. A row's tokens are the source and then the
reply, as for any model. The decoder's first input, its start token, replaces the source's last token, so that a round
feeds it: the token at position p has column p + 1 of the cache. The columns before it hold what the decoder attends to
of the source.

transformers' own layers make one position bias for all rows of a pass, from one number of tokens before it. Rows of
different lengths need one each, and so do trees; the bias here is made from the positions of queries and keys. The
modelling code computes the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from specchat.engine.backends.tensor_backend import TensorBackend
from specchat.engine.cache.block_pool import BlockPool
from specchat.engine.cache.kv_cache import KVCache
from specchat.engine.decoding.backend import Capabilities
from specchat.engine.decoding.tree_mask import FedPlaces, TreeMask, TreePart, TreePlace
from specchat.engine.device.device import padded_width, to_device
from specchat.engine.errors import check
from specchat.engine.models.load import LoadedModel
from specchat.engine.sampling.penalties import Adjustment, Penalties
from specchat.engine.sequence.sequence import SequenceState


def build(
    model: LoadedModel, slots: int, context: int, overhang: int, *_: Any, exact: bool = False, **options: Any
) -> EncoderDecoderBackend:
    """Backend of a T5, which has no taps.

    Raises:
        EngineError: the cache does not fit into memory, or passes are to be batch-invariant.
    """
    assert model.start is not None
    check(not exact, f"exact mode is for models that continue text, not for {model.name}: do without it")
    return EncoderDecoderBackend(model.model, model.start, slots, context, overhang, **options)


class EncoderDecoderBackend(TensorBackend):
    """One T5 and its cache (`engine.decoding.backend.Backend`). Passes are not captured as CUDA graphs.

    Args:
        model: a `T5ForConditionalGeneration` of transformers, in evaluation mode, on its device.
        start: first input of the decoder.
        slots: sequences that fit at once.
        context: tokens of a source, and tokens of a reply.
        overhang: columns beyond the context, for padding of rows that draft less than others of their batch.
    """

    capabilities = Capabilities(prefixes=False)

    def __init__(
        self, model: Any, start: int, slots: int, context: int, overhang: int, pool: BlockPool | None = None
    ) -> None:
        self.device: torch.device = model.device
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)  # of this thread
        config = model.config
        self.vocabulary, self.context = int(config.vocab_size), context
        self._model, self._start = model, start
        scaled = getattr(config, "scale_decoder_outputs", config.tie_word_embeddings)  # as older versions say it
        self._scale = config.d_model**-0.5 if scaled else 1.0
        self._biases = _biases_by_distance(model.decoder.block[0].layer[0].SelfAttention, context + overhang + 1)
        shapes = [(config.num_heads, config.d_kv) * 2] * len(model.decoder.block)
        self.cache = _Cache(shapes, slots, 2 * context + overhang + 1, self.device, model.dtype, pool=pool)
        self._lengths = [1] * slots
        """Tokens of each slot's source; one where nothing has been read."""
        self._unread: dict[int, list[int]] = {}
        """Sources that are encoded in the first pass of their row, by slot."""
        super().__init__(slots, _Penalties(start, slots, context, self.device), pool=None)

    @property
    def performance_warnings(self) -> list[str]:
        """Passes on a GPU are launched kernel by kernel."""
        return ["its passes are not captured as CUDA graphs"] if self.device.type == "cuda" else []

    def admit(self, row: SequenceState) -> None:
        """A row starts.

        Raises:
            EngineError: its source is too long.
        """
        source = row.tokens[: row.reply_begin]
        told = f"the prompt has {len(source)} tokens and the encoder reads {self.context} at most: shorten it"
        check(len(source) <= self.context, told)
        self._unread[row.slot] = source

    def limit(self, row: SequenceState) -> int:
        """Most tokens of source and reply together."""
        return row.reply_begin - 1 + self.context

    def _forward(
        self, inputs: Tensor, slots: Sequence[int], starts: Sequence[int], tree_mask: TreeMask | None = None
    ) -> tuple[Tensor, Tensor | None]:
        return self._score(self._run(inputs, slots, starts, tree_mask)[:, : inputs.shape[1]]), None

    @torch.inference_mode()
    def extend(self, places: Sequence[TreePlace]) -> Tensor:
        """Feed drafted tokens of trees whose ancestors the cache holds: logits [n, V]."""
        fed = FedPlaces.of(places, self.cache.columns - 1, self.device)
        return self._score(fed.joined(self._run(fed.tokens, fed.slots, fed.starts, fed.part)))

    @torch.inference_mode()
    def prefill(self, tokens: Tensor, slots: Sequence[int], starts: Sequence[int], lengths: Any = None) -> None:
        """Encode sources that have not been read; write keys and values of tokens [B, T] of replies."""
        del lengths  # padding is computed too
        self._encode(slots)
        for row, slot, start in zip(tokens, slots, starts, strict=True):
            read = max(self._lengths[slot] - 1 - start, 0)
            if read < len(row):
                self._run(row[None, read:], [slot], [start + read], None)

    def _encode(self, slots: Sequence[int]) -> None:
        """Read the sources of slots: their keys and values for all layers of the decoder, in one pass each."""
        for slot in self._unread.keys() & set(slots):
            source = self._unread.pop(slot)
            self._lengths[slot] = len(source)
            encoder = self._model.encoder
            bias = encoder.block[0].layer[0].SelfAttention.compute_bias(len(source), len(source))
            x = encoder.embed_tokens(to_device([source], self.device))
            for block in encoder.block:
                x = _fed_forward(block.layer[1], _self_attended(block.layer[0], x, bias))
            states = encoder.final_layer_norm(x)
            for block, keys, values in zip(self._model.decoder.block, self.cache.keys, self.cache.values, strict=True):
                attention = block.layer[1].EncDecAttention
                keys[slot, :, : len(source)] = _by_head(attention, attention.k(states))[0]
                values[slot, :, : len(source)] = _by_head(attention, attention.v(states))[0]

    def _run(
        self, tokens: Tensor, slots: Sequence[int], starts: Sequence[int], tree: TreeMask | TreePart | None
    ) -> Tensor:
        """Hidden states [B, T or more, d] of the decoder."""
        self._encode(slots)
        width = padded_width(tokens.shape[1]) if tree is None else tree.width
        width = min(width, self.cache.columns - 1 - max(starts))  # the end of a reply may be near that of the cache
        lengths, end = [self._lengths[slot] for slot in slots], max(starts) + width
        rows, first = to_device(slots, self.device), to_device(lengths, self.device)[:, None] - 1
        positions = to_device(starts, self.device)[:, None] + torch.arange(width, device=self.device)
        tokens = functional.pad(tokens, (0, width - tokens.shape[1])).masked_fill(positions <= first, self._start)
        # Tokens of the source may come before the start token: what is made of them is not kept.
        written = torch.where(positions < first, self.cache.columns - 1, positions + 1)
        known, longest = torch.arange(min(lengths) - 1, end, device=self.device), max(lengths)
        bias = self._bias(positions.maximum(first), known, first, tree)
        of_source = torch.arange(longest, device=self.device) <= first
        visible = None if min(lengths) == longest else of_source[:, None, None]
        contiguous = list(slots) == list(range(slots[0], slots[0] + len(slots)))
        read = slice(slots[0], slots[-1] + 1) if contiguous else rows

        def kept(stored: Tensor, new: Tensor) -> Tensor:
            stored[rows[:, None], :, written] = new.transpose(1, 2)
            return stored[read, :, min(lengths) : end + 1]

        x = self._model.decoder.embed_tokens(tokens)
        for block, keys, values in zip(self._model.decoder.block, self.cache.keys, self.cache.values, strict=True):
            x = _self_attended(block.layer[0], x, bias, partial(kept, keys), partial(kept, values))
            attention, normed = block.layer[1].EncDecAttention, block.layer[1].layer_norm(x)
            source = keys[read, :, :longest], values[read, :, :longest]
            x = _fed_forward(block.layer[2], x + _attended(attention, normed, *source, visible))
        states: Tensor = self._model.decoder.final_layer_norm(x)
        return states

    def _bias(self, positions: Tensor, known: Tensor, first: Tensor, tree: TreeMask | TreePart | None) -> Tensor:
        """Bias [B, H, T, S] of the decoder's attention: by distance, and -∞ where a query does not see a key.

        Args:
            positions: [B, T], where tokens are fed; tokens of a tree have one position after the other.
            known: [S], positions of the keys.
            first: [B, 1], position of each row's start token.
            tree: layout of the tokens; None for chains.
        """
        if tree is None:
            keys, seen = known.expand(len(positions), -1), (known <= positions[..., None])[:, None]
        else:
            place = known - (positions[:, :1] if isinstance(tree, TreeMask) else tree.first[:, None])
            depths = tree.depths.gather(1, place.clamp(0, tree.depths.shape[1] - 1))
            keys = torch.where((place >= 0) & (place < tree.depths.shape[1]), known - place + depths, known)
            seen = tree.visibility(positions, known, None)
            positions = tree.positions(positions)
        distances = (positions[:, :, None] - keys[:, None, :]).clamp_(0, len(self._biases) - 1)
        hidden = ~(seen & (known >= first)[:, None, None])
        return self._biases[distances].permute(0, 3, 1, 2).masked_fill(hidden, -torch.inf)

    def _score(self, states: Tensor) -> Tensor:
        """Logits [..., V] of normed hidden states [..., d]."""
        logits: Tensor = self._model.lm_head(states * self._scale if self._scale != 1 else states)
        return logits


class _Cache(KVCache):
    """Cache whose column p + 1 belongs to position p."""

    def keep(self, slots: Tensor, starts: Tensor, path: Tensor) -> None:
        """Move the accepted branch of a tree, as `KVCache.keep`, by positions."""
        super().keep(slots, starts + 1, path)

    def move(self, slot: int, sources: Sequence[int], target: int) -> None:
        """Copy columns, as `KVCache.move`, by positions."""
        super().move(slot, [position + 1 for position in sources], target + 1)


class _Penalties(Penalties):
    """Penalties on what the decoder has read: the start token and the reply.

    Args:
        start: the start token.
    """

    def __init__(self, start: int, slots: int, columns: int, device: torch.device) -> None:
        super().__init__(slots, columns, device)
        self._start = start

    def of(self, rows: Sequence[SequenceState], *, drafts: bool = False) -> Adjustment | None:
        """Adjustment for these rows in the current round, or for their draft steps; None if no row needs any."""
        read = [[self._start, *row.tokens[row.reply_begin :]] for row in rows]
        shown = [replace(row, tokens=t, prompt_length=1 + row.continued) for row, t in zip(rows, read, strict=True)]
        return super().of(shown, drafts=drafts)


def _self_attended(layer: Any, x: Tensor, bias: Tensor, *stores: Callable[[Tensor], Tensor]) -> Tensor:
    """x with self-attention, over the keys and the values that `stores` return, if any, for the new ones."""
    attention, normed = layer.SelfAttention, layer.layer_norm(x)
    keys, values = (_by_head(attention, part(normed)) for part in (attention.k, attention.v))
    if stores:
        keys, values = (store(new) for store, new in zip(stores, (keys, values), strict=True))
    return x + _attended(attention, normed, keys, values, bias)


def _attended(attention: Any, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """T5 does not scale the products of queries and keys."""
    queries = _by_head(attention, attention.q(x))
    out = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=1.0)
    projected: Tensor = attention.o(out.transpose(1, 2).flatten(2))
    return projected


def _fed_forward(layer: Any, x: Tensor) -> Tensor:
    """Both kinds of T5: one matrix and a ReLU, and two of which one gates the other (T5 1.1, Flan-T5).

    transformers' own looks at weights, which copies prepacked ones.
    """
    dense, normed = layer.DenseReluDense, layer.layer_norm(x)
    gated = hasattr(dense, "wi_0")
    inner = dense.act(dense.wi_0(normed)) * dense.wi_1(normed) if gated else dense.act(dense.wi(normed))
    out: Tensor = x + dense.wo(inner)
    return out


def _by_head(attention: Any, projected: Tensor) -> Tensor:
    """[B, H, T, D] of [B, T, H · D]."""
    return projected.view(*projected.shape[:2], -1, attention.key_value_proj_dim).transpose(1, 2)


@torch.inference_mode()
def _biases_by_distance(attention: Any, positions: int) -> Tensor:
    """[positions, H]: the bias of a key that many positions before the query."""
    weights: Tensor = attention.relative_attention_bias.weight
    buckets = attention._relative_position_bucket(
        -torch.arange(positions, device=weights.device),
        bidirectional=False,
        num_buckets=attention.relative_attention_num_buckets,
        max_distance=attention.relative_attention_max_distance,
    )
    return weights[buckets]
