"""Backend on the packed CPU kernels: a pass is one call, over rows of any lengths."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cache, partial

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from specchat.engine.backends.kernel_drafting import KernelDrafting, PenaltiesOfRows
from specchat.engine.cache.block_pool import BlockPool
from specchat.engine.cache.paged_cache import ROLLBACK, PackedStates, PagedCache
from specchat.engine.decoding.backend import Backend, Capabilities
from specchat.engine.decoding.draft import Draft, Support, common_support
from specchat.engine.decoding.tree import BRANCHES
from specchat.engine.decoding.tree_mask import TreePlace
from specchat.engine.kernels.decoder import TokenLayout
from specchat.engine.kernels.library import c_settings
from specchat.engine.kernels.packed_matrix import Format, PackedMatrix, QuantizedLinear
from specchat.engine.kernels.round import RoundRows, RoundRules, round_memory
from specchat.engine.models.packed.load import PackedModel
from specchat.engine.request import MAX_GAMMA
from specchat.engine.sampling.penalties import Penalties
from specchat.engine.sampling.rng import Stream
from specchat.engine.sequence.sequence import SequenceState

CPU = torch.device("cpu")


class PackedBackend(Backend):
    """One model on the quantised kernels, and its cache; see `engine.decoding.backend.Backend`.

    A token's bits depend on nothing but the tokens it sees, so that every pass is exact in the sense of
    `EngineConfig.exact`. Passes are not padded.

    Args:
        model: the weights.
        slots: rows of the cache.
        context: tokens per row.
        overhang: columns beyond the context, for rows that draft less than their batch.
        taps: depths of the hidden states that every pass returns.
        pool: blocks of the cache, of the target if this is a draft model; its own if None.
        cache_type: of keys and values (`engine.config.CACHE_TYPES`).

    Raises:
        EngineError: the cache does not fit into memory.
    """

    device = CPU
    capabilities = Capabilities(ragged=True, packed=True, rounds=8)

    def __init__(
        self,
        model: PackedModel,
        slots: int,
        context: int,
        overhang: int,
        taps: Sequence[int] = (),
        *,
        exact: bool = False,  # noqa: ARG002 as every pass is
        pool: BlockPool | None = None,
        cache_type: str = "f16",
    ) -> None:
        columns = context + overhang + 1
        shape, recurrent = model.shape, model.described.recurrent
        self._states = None
        if recurrent:
            self._states = PackedStates(len(recurrent), slots, shape.taps, shape.recurrent_sizes)
            self.capabilities = replace(self.capabilities, trees=False, rounds=1)
        self.cache = PagedCache(model.cached, slots, columns, self._states, pool, cache_type)
        self._decoder = model.decoder(context, columns)
        self.cache.connect(self._decoder.attach, self._decoder.move)
        self._embedding = self.packed_embedding = model.embedding
        self._output = model.output
        self.context, self.taps = context, tuple(taps)
        self.vocabulary = model.shape.vocabulary
        self.short_context = model.short_context(context)
        if self._states:
            self._decoder.attach_states(*self._states.tensors)
        self.penalties = Penalties(slots, context, CPU)
        self.penalties_of_rows = PenaltiesOfRows(self.vocabulary)
        """Their bias and penalties as the kernels read them."""
        rules = RoundRules(self.vocabulary, BRANCHES, Stream.ACCEPT, Stream.LAST)
        self._memory = cache(partial(round_memory, rules, self.capabilities.rounds))
        """Memory of rounds, by number of rows and room for tokens."""

    def admit(self, row: SequenceState) -> None:
        """Start a row: its sequence breakers are looked up before its first round, as that takes a while."""
        if row.adjusts:
            self.penalties_of_rows.of(row)

    def width(self, length: int) -> int:
        """Passes are not padded."""
        return length

    @torch.inference_mode()
    def forward_with_states(
        self, inputs: Tensor, slots: Sequence[int], starts: Sequence[int]
    ) -> tuple[Tensor, Tensor | None]:
        """Like `forward`, with the tapped hidden states [B, T, taps x hidden], float32."""
        rows, width = inputs.shape[:2]
        embeddings = inputs.flatten(0, 1) if inputs.is_floating_point() else None
        ids = [0] * (rows * width) if embeddings is not None else inputs.flatten().tolist()
        layout = TokenLayout.chains(slots, starts, [width] * rows)
        self._begin(slots, starts, [width] * rows, [start - ROLLBACK for start in starts])
        logits, tapped = self._decoder.run(ids, layout, range(len(ids)), torch.get_num_threads(), self.taps, embeddings)
        return logits.view(rows, width, -1), None if tapped is None else tapped.view(rows, width, -1)

    def extend(self, places: Sequence[TreePlace]) -> Tensor:
        """Feed drafted tokens of trees whose ancestors the cache holds: logits [n, V], float32."""
        ids = [place.token for place in places]
        layout = TokenLayout.of(
            (p.slot, p.first + len(p.path) + 1, p.first + p.column, p.first + 1, [p.first + each for each in p.path])
            for p in places
        )
        return self._decoder.run(ids, layout, range(len(ids)), torch.get_num_threads())[0]

    @property
    def drafter_address(self) -> int:
        """`sk_drafter` by which this model drafts for others."""
        return self._decoder.drafter

    @property
    def tapped_width(self) -> int:
        """Width of the tapped hidden states; 0 without taps."""
        return len(self.taps) * self._decoder.shape.hidden

    def run_rounds(
        self,
        rows: Sequence[SequenceState],
        drafts: Sequence[Draft],
        rounds: int = 1,
        drafting: KernelDrafting | None = None,
        drafter: int | None = None,
        ends: Collection[int] = (),
    ) -> list[RoundRows]:
        """Run up to `rounds` rounds in one call; the results of each that was run, valid until the next call.

        Args:
            rows: B.
            drafts: [B], of rows that the kernels draft for empty ones.
            rounds: at most `capabilities.rounds`.
            drafting: what the kernels draft; None for nothing.
            drafter: `sk_drafter` that drafts, or that takes in what was accepted between rounds.
            ends: tokens that end a reply.

        Raises:
            KernelError: arguments do not fit, or a round fails.
        """
        if self._states:
            starts = [row.cached for row in rows]
            lengths = [1 + (MAX_GAMMA if drafting else len(draft.tree)) for draft in drafts]
            self._begin([row.slot for row in rows], starts, lengths, starts)
        memory = self._memory(len(rows), max(MAX_GAMMA, *(len(draft.tree) for draft in drafts)))[:rounds]
        support = (drafting and drafting.support) or common_support(drafts)
        fill_rows(memory[0], rows, drafts, support, self.penalties_of_rows)
        growing = drafting.write_to([row.drafted for row in memory[0].rows]) if drafting else None
        return memory[: self._decoder.run_rounds(memory, self.taps, growing, drafter, ends)]

    def warm_up(self, supports: Sequence[Support | None] = ()) -> None:  # noqa: ARG002
        """Run a pass over several tokens."""
        self.forward(torch.zeros(1, 5, dtype=torch.long), [0], [0])

    @torch.inference_mode()
    def prefill(
        self, tokens: Tensor, slots: Sequence[int], starts: Sequence[int], lengths: Sequence[int] | None = None
    ) -> Tensor | None:
        """Feed tokens [B, T]; their tapped hidden states."""
        rows, width = tokens.shape
        counts = [width] * rows if lengths is None else list(lengths)
        flat = [token for row, count in zip(tokens.tolist(), counts, strict=True) for token in row[:count]]
        layout = TokenLayout.chains(slots, starts, counts)
        ends = [start + count for start, count in zip(starts, counts, strict=True)]
        self._begin(slots, starts, counts, ends, prompt=True)
        _, tapped = self._decoder.run(flat, layout, (), torch.get_num_threads(), self.taps)
        return None if tapped is None else pad_sequence([*torch.split(tapped, counts)], batch_first=True)

    def _begin(
        self,
        slots: Sequence[int],
        starts: Sequence[int],
        counts: Sequence[int],
        final: Sequence[int],
        *,
        prompt: bool = False,
    ) -> None:
        """Prepare recurrent layers for a pass over these chains; no token below `final` is taken back later."""
        if self._states:
            for slot, start, count, length in zip(slots, starts, counts, final, strict=True):
                self._states.begin(slot, start, count, final=length, prompt=prompt)

    def embedding_rows(self, tokens: Tensor) -> Tensor:
        """Rows [..., d] of the embedding, float32."""
        return torch.from_numpy(self._embedding.rows_of(tokens.flatten().numpy())).view(*tokens.shape, -1)

    def packed_output(self) -> PackedMatrix | None:
        """The output layer [V, d] as it is stored; None where that is not as codes."""
        return self._output if self._output.format < Format.BF16 else None

    def output_rows(self, tokens: Tensor) -> Tensor:
        """Rows [n, d] of the output layer, float32."""
        return torch.from_numpy(self._output.rows_of(tokens.numpy()))

    def output_layer(self) -> nn.Module:
        """The output layer, as it is stored."""
        return QuantizedLinear(self._output)


def fill_rows(
    memory: RoundRows,
    rows: Sequence[SequenceState],
    drafts: Sequence[Draft],
    support: Support | None,
    penalties: PenaltiesOfRows,
) -> None:
    """Set the rows of a round, and what has been drafted for them on the host.

    Args:
        memory: of the round.
        rows: B.
        drafts: [B].
        support: that all distributions are over.
        penalties: of the rows.
    """
    memory.fill(support, int(any(row.greedy for row in rows)), torch.get_num_threads())
    for i, (row, draft) in enumerate(zip(rows, drafts, strict=True)):
        request, by_reference = row.request, judged_by_reference(row, draft)
        memory.set_row(
            i,
            draft.on_host,
            draft.tree.parents,
            draft.q_over(support) if row.draws and len(draft.tree) else None,
            slot=row.slot,
            start=row.cached,
            last_token=row.tokens[-1],
            sampling=None if row.greedy else c_settings(request.sampling),
            seed=row.seed,
            number=row.rounds,
            penalties=penalties.of(row).c() if row.adjusts and not by_reference else None,
            allowed=None,
            held=by_reference or row.constraint is not None,
            left=row.left,
        )


def judged_by_reference(row: SequenceState, draft: Draft) -> bool:
    """Whether the reference on tensors has to judge a draft: the kernels know neither lenience nor details."""
    request = row.request
    return request.sampling.lenience < 1 or request.detail > 0 or (draft.tree.tests is not None and row.draws)


build = PackedBackend
"""Makes the backend of a packed model."""
