"""A draft head's layer on the quantised kernels: a step is one call, and so is a whole tree that grows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from specchat.engine.backends.packed_runner import RoundStates
from specchat.engine.cache.block_pool import BlockPool
from specchat.engine.cache.kv_cache import lazy_zeros, packed_blocks
from specchat.engine.cache.prefix_tree import BLOCK
from specchat.engine.decoding.tree import BRANCHES
from specchat.engine.decoding.tree_mask import TreePlace
from specchat.engine.drafters.head.layer import WINDOW, HeadLayer, Level, Rows
from specchat.engine.drafters.head.network import DraftHead
from specchat.engine.kernels.decoder import TokenLayout
from specchat.engine.kernels.decoder_shape import DecoderShape, LayerShape, sizes_fit
from specchat.engine.kernels.decoder_weights import DecoderWeights, LayerWeights
from specchat.engine.kernels.drafters import STATE, PackedHead, Scores, StateDrafter
from specchat.engine.kernels.packed_matrix import PackedMatrix, QuantizedLinear, array_of
from specchat.engine.kernels.round import TargetStates

_CPU = torch.device("cpu")
_TIMED = 3
"""Steps that are timed to know what one takes."""
_SCORED = 6
"""Ratio of all clusters to scored ones."""
_MATRICES = ("fuse", "again", "token", "qkv", "out", "gate_up", "down")
"""The linear layers of a head."""


class PackedLayer(HeadLayer):
    """States, keys and values of a head, by block, and the passes over them. What a step scores with are logits.

    Args:
        head: all of its linear layers are `QuantizedLinear`.
        scores: [V', d], gives logits of the draft vocabulary.
        embedding: [V, d], the target's.
        pool: the blocks of the target's cache.
        window: places that a place sees, itself included.

    Raises:
        KernelError: the kernels cannot compute with these sizes.
    """

    def __init__(
        self, head: DraftHead, scores: PackedMatrix, embedding: PackedMatrix, pool: BlockPool, window: int = WINDOW
    ) -> None:
        self._head = _packed(head, scores, embedding, pool.width * BLOCK, window)
        self.unread = UnreadStates(self._head)
        """Hidden states of the target that the layer has not read yet."""
        self._shape = head.shape
        self._tables = pool.tables
        self.allocate(pool.blocks)
        super().__init__([self.states], pool, window)
        self._rows = ()
        self.column_bytes += 2 * head.shape.key_heads * head.shape.head_size * self._keys.element_size()
        self.scores: Scores
        """Output of the last step."""

    @property
    def drafter(self) -> int:
        """`sk_drafter` of the head."""
        return self._head.drafter

    @property
    def tapped_width(self) -> int:
        """Width of the target's hidden states that it reads."""
        return self._head.width

    @property
    def bytes(self) -> int:
        """Memory of all blocks."""
        return self.states.nbytes + 2 * self._keys.nbytes

    def allocate(self, blocks: int) -> None:
        """Have memory for this number of blocks; pages are taken when they are first written to."""
        shape = self._shape
        self.states = lazy_zeros((blocks, BLOCK, shape.hidden), _CPU, torch.float32)
        self._keys, self._values = packed_blocks(blocks, shape.key_heads, shape.head_size)
        self.memory = [self.states, self._keys.movedim(3, 1), self._values.movedim(2, 1)]
        self._head.attach(self._tables, self.states, self._keys, self._values)

    def time_step(self) -> float:
        """Seconds of a step over one place, the fastest of a few; no slot may be in use."""
        self.states[0, 0] = 0
        times = []
        for _ in range(_TIMED):
            started = time.perf_counter()
            self._run([0], TokenLayout.chains([0], [0], [1]), [STATE], [0])
            times.append(time.perf_counter() - started)
        return min(times)

    def copy(self, source: int, target: int, count: int) -> None:
        """Copy the first columns of a block."""
        self.flush()
        super().copy(source, target, count)

    def load(self, slot: int, length: int) -> None:  # noqa: ARG002
        """Passes read the blocks."""
        self.flush()

    def save(self, slot: int, start: int, end: int) -> None:
        """Passes write the blocks."""

    def absorb(
        self,
        slots: Sequence[int],
        starts: Sequence[int],
        tapped: Tensor | Sequence[Tensor],
        lengths: Sequence[int] | None = None,
    ) -> None:
        """Keep the states of the tokens that are wanted; states of a prompt are computed when they are needed."""
        self.unread.absorb(slots, starts, tapped, lengths)

    def flush(self) -> None:
        """Make the states of what the target has read since the last time."""
        self.unread.flush()

    def read(self, rows: Rows, tokens: Tensor) -> Tensor:
        """Read the last places of all rows, of each as many as it has."""
        self.flush()
        width, lasts = tokens.shape[1], rows.ends.tolist()
        counts = [min(width, end) for end in lasts]
        ids = [token for row, count in zip(tokens.tolist(), counts, strict=True) for token in row[width - count :]]
        starts = [end - count for end, count in zip(lasts, counts, strict=True)]
        chains = TokenLayout.chains(rows.slots.tolist(), starts, counts)
        judged = [end - 1 for end in accumulate(counts)]
        return self._run(ids, chains, [STATE] * len(ids), judged).logits[:, None]

    def follow(self, rows: Rows, level: Level, outcome: Tensor, tokens: Tensor) -> Tensor:  # noqa: ARG002 it is kept
        """Continue chains."""
        parts = zip(rows.slots.tolist(), rows.ends.tolist(), tokens[:, 0].tolist(), strict=True)
        last, path = level.last, range(1, level.last)
        places = [TreePlace(slot, end, token, last, path) for slot, end, token in parts]
        return self.expand(places, range(len(places))).logits[:, None]

    def score(self, outcome: Tensor, depth: int) -> Tensor:  # noqa: ARG002
        """The logits of a step."""
        return outcome

    def expand(self, places: Sequence[TreePlace], sources: Sequence[int]) -> Scores:
        """Scores after n drafted tokens, each after a place of the last step; tokens of a row are neighbours."""
        before = [place.first - 1 for place in places]
        layout = TokenLayout(
            slots=[place.slot for place in places],
            positions=[place.first + len(place.path) for place in places],
            columns=[first + place.column for first, place in zip(before, places, strict=True)],
            prefixes=[place.first for place in places],
            ancestor_offsets=[0, *accumulate(len(place.path) for place in places)],
            ancestors=[first + column for first, place in zip(before, places, strict=True) for column in place.path],
        )
        return self._run([place.token for place in places], layout, sources, range(len(places)))

    def _run(self, ids: Sequence[int], layout: TokenLayout, sources: Sequence[int], judged: Sequence[int]) -> Scores:
        self.scores = self._head.run(ids, layout, sources, judged, BRANCHES, torch.get_num_threads())
        return self.scores


def can_be_packed(head: DraftHead) -> bool:
    """Whether the kernels can compute with a head whose linear layers have been quantised."""
    shape = head.shape
    quantised = all(isinstance(getattr(head, name), QuantizedLinear) for name in _MATRICES)
    return quantised and sizes_fit(shape.hidden, shape.head_size, shape.intermediate)


def _packed(head: DraftHead, scores: PackedMatrix, embedding: PackedMatrix, positions: int, window: int) -> PackedHead:
    """The head on the kernels, its weights in the memory that they are in."""
    shape = head.shape
    fuse, again, token, qkv, out, gate_up, down = (getattr(head, name).matrix for name in _MATRICES)
    queries, keys = shape.heads * shape.head_size, shape.key_heads * shape.head_size
    layer = LayerWeights(
        shape=LayerShape(shape.key_heads, shape.head_size, shape.intermediate),
        parts={
            "query": qkv.part(0, queries),
            "key": qkv.part(queries, keys),
            "value": qkv.part(queries + keys, keys),
            "output": out,
            "gate": gate_up.part(0, shape.intermediate),
            "up": gate_up.part(shape.intermediate, shape.intermediate),
            "down": down,
            "attention_norm": array_of(head.read_norm.weight),
            "mlp_norm": array_of(head.mlp_norm.weight),
        },
        window=window,
    )
    described = DecoderShape(
        hidden=shape.hidden,
        heads=shape.heads,
        key_heads=shape.key_heads,
        head_size=shape.head_size,
        intermediate=shape.intermediate,
        vocabulary=scores.rows,
        epsilon=shape.epsilon,
        activation="silu",
        attention_scale=shape.head_size**-0.5,
        clusters_scored=-(-shape.clusters // _SCORED),
    )
    pairs = shape.head_size // 2
    cosines, sines = (array_of(part[0, 0, :, :pairs]) for part in head.rotation(torch.arange(positions)[None]))
    whole = DecoderWeights(
        described,
        [layer],
        embedding,
        scores,
        array_of(head.score_norm.weight),
        [(cosines, sines)],
        clusters=head.clusters.matrix if isinstance(head.clusters, QuantizedLinear) else None,
    )
    return PackedHead(whole, fuse, again, token, len(shape.taps))


_MOST_UNREAD = 64
"""Tokens whose hidden states are kept until they are needed: rounds that do not draft need not wait for the drafter."""


class UnreadStates:
    """Hidden states that wait to be read.

    Args:
        drafter: reads them.
    """

    def __init__(self, drafter: StateDrafter) -> None:
        self._drafter = drafter
        self._states: list[TargetStates] = []
        self._tokens = 0

    def absorb(
        self,
        slots: Sequence[int],
        starts: Sequence[int],
        tapped: Tensor | Sequence[Tensor],
        lengths: Sequence[int] | None = None,
    ) -> None:
        """Keep the states of the tokens that are wanted; states of a round are read at once.

        Args:
            slots: [B].
            starts: [B], the position of each row's first token.
            tapped: [B, T, taps x d], or of each row its own [T, taps x d].
            lengths: [B], how many of each row's T tokens are wanted; all if None.
        """
        if isinstance(tapped, RoundStates):
            self._drafter.absorb(tapped.rows)
            return
        counts = [len(part) for part in tapped] if lengths is None else lengths
        for part, slot, start, count in zip(tapped, slots, starts, counts, strict=True):
            self._states.append(TargetStates(slot, start, part, count))
            self._tokens += count
        if self._tokens >= _MOST_UNREAD:
            self.flush()

    def flush(self) -> None:
        """Let the drafter read all of them."""
        if states := self.take():
            self._drafter.write_states(states, torch.get_num_threads())

    def take(self) -> Sequence[TargetStates]:
        """All of them; from then on they count as read."""
        states, self._states, self._tokens = self._states, [], 0
        return states
