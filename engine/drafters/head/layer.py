"""Interface of a draft head's layer, in torch or on the kernels, and the weights that score its vocabulary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from specchat.engine.backends.token_product import use_token_kernel
from specchat.engine.cache.block_pool import BlockPool, BlockStore
from specchat.engine.cache.kv_cache import lazy_zeros
from specchat.engine.cache.prefix_tree import BLOCK
from specchat.engine.decoding.backend import Backend
from specchat.engine.decoding.tree import Tree
from specchat.engine.decoding.tree_mask import TreeMask
from specchat.engine.device.device import to_device
from specchat.engine.kernels.packed_matrix import Format, QuantizedEmbedding, QuantizedLinear
from specchat.engine.models.linear_layers import pack, prepacked_linear
from specchat.engine.models.packed.load import Model, PackedModel
from specchat.engine.models.packed.quantize import can_quantize, quantize_network, quantized_rows
from specchat.engine.request import MAX_GAMMA

WINDOW = 256
"""Places a draft looks back: the longest distance in training."""
FOUR_BITS = (Format.Q4, Format.Q4_SUPER, Format.MXFP4)


@dataclass(frozen=True, slots=True)
class Level:
    """One draft step of a tree, as indices on the device."""

    mask: TreeMask
    """Mask of the whole tree, without padding."""
    tokens: Tensor
    """[P], tokens of the pass that something is offered after."""
    last: int
    """The highest of them."""
    sources: Tensor
    """[P], index of the parent of each among the tokens of the level before."""
    children: Tensor
    """[C], what is offered after them, tokens of the pass."""
    offered: Tensor
    """[C], index of the draw of each child, counted over all P in turn."""
    draws: Tensor
    """[P, K], the uniform of each draw; K is the most that one of them offers, some draws are for nothing."""


@lru_cache
def levels_of(tree: Tree, device: torch.device) -> list[Level]:
    """The draft steps that make a tree."""
    levels, mask = [], TreeMask.of((tree,), len(tree) + 1, device)
    before: tuple[int, ...] = ()
    for level in tree.levels:
        offered = [tree.children[token] for token in level]
        most = max(map(len, offered))
        draws = [[child - 1 for child in each] + [0] * (most - len(each)) for each in offered]
        sources = [before.index(tree.parents[token - 1]) if token else 0 for token in level]
        children = [child for each in offered for child in each]
        ranks = [place * most + rank for place, each in enumerate(offered) for rank in range(len(each))]
        tokens, *others = (to_device(index, device) for index in (level, sources, children, ranks, draws))
        levels.append(Level(mask, tokens, level[-1], *others))
        before = level
    return levels


class Rows(NamedTuple):
    """B rows that draft, as a captured step knows them."""

    slots: Tensor
    """[B], int64."""
    ends: Tensor
    """[B], int64: a row's number of tokens less one; 0 where there is no row."""
    longest: int
    """Upper limit of all ends."""


class RowStore(BlockStore):
    """Tensors of a drafter with an entry for each column of each slot.

    Args:
        rows: tensors [slots, columns, …] that are kept with a text.
        pool: the blocks of the target's cache, which has as many slots and columns.
        window: columns before the end of a text that are looked at; None for all.
    """

    def __init__(self, rows: Sequence[Tensor], pool: BlockPool, window: int | None = None) -> None:
        self._rows, self._window = rows, window
        self.column_bytes = sum(each[0, 0].nbytes for each in rows)
        super().__init__(pool)

    @property
    def bytes(self) -> int:
        """Memory of all slots."""
        return sum(each.nbytes for each in self._rows)

    def allocate(self, blocks: int) -> None:
        """Have memory for this number of blocks."""
        self.memory = ()
        self.memory = [lazy_zeros((blocks, BLOCK, *each.shape[2:]), each.device, each.dtype) for each in self._rows]

    def load(self, slot: int, length: int) -> None:
        """Copy what is looked at of a slot's first columns from its blocks."""
        start = 0 if self._window is None else max(length - self._window, 0)
        for rows, saved, blocks in self._blocks(slot, start, length):
            rows.copy_(saved[blocks])

    def save(self, slot: int, start: int, end: int) -> None:
        """Copy columns of a slot to its blocks."""
        for rows, saved, blocks in self._blocks(slot, start, end):
            saved[blocks] = rows

    def _blocks(self, slot: int, start: int, end: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Whole blocks with these columns: the slot's [n, BLOCK, …], the memory of all blocks, and which they are."""
        first, last = start // BLOCK, -(-end // BLOCK)
        blocks = to_device(torch.from_numpy(self.pool.tables[slot, first:last]), self._rows[0].device, torch.long)
        for rows, saved in zip(self._rows, self.memory, strict=False):
            yield rows[slot, first * BLOCK : last * BLOCK].view(last - first, *saved.shape[1:]), saved, blocks


class HeadLayer(RowStore):
    """A head with states, keys and values of every slot; a tree's token i has the i-th place after the last read.

    Args:
        rows: states [slots, columns, d], and other tensors [slots, columns, …] that are kept with a text.
        pool: the blocks of the target's cache, which has as many slots and columns.
        window: places that a place sees, itself included.
        deepest: positions it can draft for.
    """

    def __init__(self, rows: Sequence[Tensor], pool: BlockPool, window: int, deepest: int = MAX_GAMMA) -> None:
        self.states, self.window, self.deepest = rows[0], window, deepest
        self.most_unread = window + BLOCK - 1 if window > 1 else 1
        """Most places that a row reads at once: a window, from the beginning of a block on."""
        super().__init__(rows, pool, window)

    def width(self, places: int) -> int:
        """Places per row that reading `places` is padded to where shapes are not static."""
        return places

    def flush(self) -> None:
        """Complete the states of what the target has read: the slot's blocks may soon be another's."""

    def absorb(
        self,
        slots: Sequence[int],
        starts: Sequence[int],
        tapped: Tensor | Sequence[Tensor],
        lengths: Sequence[int] | None = None,  # noqa: ARG002 what is not wanted is overwritten before it is looked at
    ) -> None:
        """Keep the states of tokens.

        Args:
            slots: [B].
            starts: [B], the position of each row's first token.
            tapped: [B, T, taps x d], the target's hidden states, or of each row its own [T, taps x d].
            lengths: [B], how many of each row's T tokens are wanted; all if None.
        """
        if not isinstance(tapped, Tensor):
            tapped = pad_sequence(list(tapped), batch_first=True)
        states, device = self.fused(tapped, self.states.shape[1] - max(starts)), self.states.device
        columns = to_device(starts, device)[:, None] + torch.arange(states.shape[1], device=device)
        self.states[to_device(slots, device)[:, None], columns] = states

    def fused(self, tapped: Tensor, room: int) -> Tensor:  # noqa: ARG002
        """States [B, T, d] from the target's hidden states [B, T, taps x d]; T may be padded up to `room`."""
        return tapped

    def read(self, rows: Rows, tokens: Tensor) -> Tensor:
        """Run on the target's states at the last places of every row: what the first draft step scores with [B, 1, d].

        Args:
            rows: B.
            tokens: [B, W], int64: the last W of each row, of which those count that it has.
        """
        raise NotImplementedError

    def follow(self, rows: Rows, level: Level, outcome: Tensor, tokens: Tensor) -> Tensor:
        """Continue after drafted tokens: what the next draft step scores with [B, P, d].

        Args:
            rows: B.
            level: of the tree that all rows draft.
            outcome: [B, P, d], what the step before scored with where these tokens were drafted.
            tokens: [B, P], int64, what they are.
        """
        raise NotImplementedError

    def score(self, outcome: Tensor, depth: int) -> Tensor:
        """Logits [B, P, V'] of what was read or continued with [B, P, d], for tokens of depth `depth` + 1."""
        raise NotImplementedError


class LayeredHead(nn.Module):
    """The network of a head that makes its layer itself."""

    taps: tuple[int, ...]
    """Depths of the target's hidden states that it reads."""

    def layer_of(self, vocabulary: Tensor, target: Backend) -> tuple[HeadLayer, int]:
        """The layer next to a target, and the bytes of what scores its vocabulary, if that is no part of the head.

        Args:
            vocabulary: [V'], int64, the tokens that it drafts.
            target: whose hidden states it reads.
        """
        raise NotImplementedError


def pack_head(head: nn.Module, target: Model, codes: str = "q8") -> int:
    """Put the head on its target's device in its dtype, the linear layers in the layout that is fastest.

    Args:
        head: with its weights.
        target: its model.
        codes: `q8` or `q4`, which linear layers get next to packed weights, made of the weights as they are stored.

    Returns:
        Bytes of all weights.
    """
    if isinstance(target, PackedModel):
        quantize_network(head, codes)
    head.to(target.device, target.dtype).eval().requires_grad_(requires_grad=False)
    size = sum(weight.nbytes for weight in head.parameters())
    size += sum(layer.bytes for layer in head.modules() if isinstance(layer, QuantizedLinear | QuantizedEmbedding))
    pack(head)
    use_token_kernel(head)
    return size


def codes_of(layer: object) -> str | None:
    """Codes of a layer of a head: `q4` or `q8`; None without codes."""
    if not isinstance(layer, QuantizedLinear):
        return None
    return "q4" if layer.matrix.format in FOUR_BITS else "q8"


def target_output(target: Backend, vocabulary: Tensor, codes: str | None) -> tuple[nn.Module, int]:
    """The target's output layer for these tokens, and the bytes that it takes in addition to the target's own.

    Args:
        target: whose output layer it is.
        vocabulary: [V'], int64.
        codes: that what drafts has; codes of the target stay if they are no longer.
    """
    if len(vocabulary) == target.vocabulary and codes != "q4":
        return target.output_layer(), 0
    own = target.packed_output()
    if own is not None and (codes != "q4" or own.format in FOUR_BITS):
        part = own.picked(vocabulary.numpy())
        return QuantizedLinear(part), part.data.nbytes
    if codes is not None and can_quantize(target.output_rows(vocabulary[:1])):
        layer = quantized_rows(target.output_rows, vocabulary, codes)
        return layer, layer.bytes
    weight = target.output_rows(vocabulary)
    return prepacked_linear(weight), weight.nbytes
