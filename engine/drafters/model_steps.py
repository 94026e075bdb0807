"""Draft steps of a network that drafts token by token: one forward pass for all rows each, on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from specchat.engine.decoding.draft import Draft, RowOrder
from specchat.engine.decoding.tree import chain
from specchat.engine.device.device import to_device
from specchat.engine.device.graphs import FIRST, LATER, Graphs, Inputs, Signature, Step
from specchat.engine.sampling import xtc
from specchat.engine.sampling.penalties import Penalties
from specchat.engine.sampling.rng import Stream, uniforms
from specchat.engine.sampling.sampler import (
    NUMBERS,
    SamplingFlags,
    SamplingRows,
    coarse_flags,
    draw,
    most_likely,
    setting_numbers,
    standardise,
)
from specchat.engine.sequence.sequence import SequenceState

Forward = Callable[[Tensor, Sequence[int], Sequence[int]], Tensor]
"""Logits [B, T or 1, V] after tokens [B, T], int64, or after the last of them, of rows in slots, from places on."""


class ModelSteps:
    """The draft steps of a model, or of a table of counts.

    Args:
        forward: a pass of it.
        graphs: captures what chooses tokens, or calls it.
        penalties: shared with the target, so that p and q know the same context.
        vocabulary: V, the size of the target's distributions; what the model has beyond it is never drafted.
    """

    def __init__(self, forward: Forward, graphs: Graphs, penalties: Penalties, vocabulary: int) -> None:
        self._forward, self._graphs = forward, graphs
        self._device, self._penalties, self.vocabulary = graphs.device, penalties, vocabulary

    @property
    def graph_bytes(self) -> int:
        """Memory of distributions, on a GPU."""
        return self._graphs.bytes

    @torch.inference_mode()
    def draft(
        self, rows: Sequence[SequenceState], lead: int, steps: int, first: int = 0
    ) -> tuple[Tensor, Tensor | None]:
        """Tokens [B, steps] and, if a row draws its draft, their distributions [B, steps, V].

        Args:
            rows: B, of which all but the last `lead` tokens are cached.
            lead: tokens fed in the first step.
            steps: at least 1.
            first: index of the first step's uniform among the uniforms of the round.
        """

        def logits_after(step: int, tokens: Tensor) -> Tensor:
            if not step:
                return self.after_last(rows, lead)[:, None]
            starts = [len(row.tokens) + step - 1 for row in rows]
            return self.fit(self._forward(tokens[:, -1:], [row.slot for row in rows], starts))

        return self.chain(rows, logits_after, steps, first)

    @torch.inference_mode()
    def chain(
        self, rows: Sequence[SequenceState], logits_after: Callable[[int, Tensor], Tensor], steps: int, first: int = 0
    ) -> tuple[Tensor, Tensor | None]:
        """Like `draft`; `logits_after` returns a step's logits [B, 1, V], given the tokens [B, step] before it."""
        sampling = [row.drafting for row in rows]
        flags = SamplingFlags.of(sampling).strict
        if self._graphs.enabled and not flags.all_greedy:
            flags = flags.coarse(self._graphs.count(len(rows)))
        numbers: dict[str, ArrayLike] = {"settings": setting_numbers(sampling)}
        u = uniforms([row.seed for row in rows], [row.rounds for row in rows], Stream.DRAFT, first + steps)[:, first:]
        adjustment = self._penalties.of(rows, drafts=True)
        tokens = torch.empty(len(rows), 0, dtype=torch.long, device=self._device)
        distributions: list[Tensor] = []
        for step in range(steps):
            logits = logits_after(step, tokens)
            if adjustment is not None:
                logits = adjustment.apply(logits, tokens, first=step)
            if flags.any_xtc:
                numbers["xtc"] = xtc.thresholds(rows, [[step]] * len(rows), 1)
            token, q = self._choose(logits, flags, numbers | {"u": u[:, step]})
            if q is not None:
                distributions.append(q)
            tokens = torch.cat([tokens, token[:, None]], dim=1)
        return tokens, torch.stack(distributions, 1) if distributions else None

    def _choose(
        self, logits: Tensor, flags: SamplingFlags, numbers: dict[str, ArrayLike]
    ) -> tuple[Tensor, Tensor | None]:
        """The next tokens [B] from logits [B, 1, V], and the distributions [B, V] that they were drawn from."""
        if flags.all_greedy:
            return most_likely(logits)[:, 0], None
        step = self._drawing(self._graphs.count(len(logits)), flags)
        token, q = self._graphs.call(*step, numbers, {"logits": logits})
        if self._graphs.enabled:  # the next step overwrites them
            token, q = token[: len(logits)].clone(), q[: len(logits)].clone()
        return token, q

    def plan(self) -> None:
        """Plan to capture the drawing of tokens for all numbers of rows."""
        for rows in reversed(self._graphs.counts):
            for flags in coarse_flags(rows):
                if not flags.all_greedy:
                    self._graphs.plan(FIRST if rows == 1 else LATER + rows, *self._drawing(rows, flags))

    def _drawing(self, rows: int, flags: SamplingFlags) -> Step:
        """Drawing of one token per row."""

        def run(inputs: Inputs) -> list[Tensor]:
            settings = SamplingRows.from_numbers(inputs["settings"], flags, inputs.get("xtc"))
            q = standardise(inputs["logits"], settings)[:, 0]
            return [draw(q, inputs["u"]), q]

        def signature() -> Signature:
            shape = rows, 1, self.vocabulary
            reals: dict[str, tuple[int, ...]] = {"settings": (rows, NUMBERS), "u": (rows,)}
            reals |= {"xtc": (rows, 1)} if flags.any_xtc else {}
            return Signature({}, reals, {"logits": (shape, torch.float32)})

        return (rows, flags), run, signature

    @torch.inference_mode()
    def after_last(self, rows: Sequence[SequenceState], lead: int) -> Tensor:
        """Logits [B, V] of what follows each row's last token, of which all but the last `lead` tokens are cached."""
        fed = to_device([row.tokens[-lead:] for row in rows], self._device)
        starts = [len(row.tokens) - lead for row in rows]
        return self.fit(self._forward(fed, [row.slot for row in rows], starts)[:, -1])

    def fit(self, logits: Tensor) -> Tensor:
        """Logits over the target's vocabulary: padding tails differ between models of one family.

        Tokens that the network has not get the least finite logit: the kernels take an infinite one for a fault.
        """
        missing = self.vocabulary - logits.shape[-1]
        if missing <= 0:
            return logits[..., : self.vocabulary]
        return torch.nn.functional.pad(logits, (0, missing), value=torch.finfo(logits.dtype).min)


def drafted_chains(
    orders: Sequence[RowOrder], tokens: Tensor, q: Tensor | None, buckets: Sequence[Sequence[int]] = ()
) -> list[Draft]:
    """Chains of γ tokens, or of as many as there are.

    Args:
        orders: [B].
        tokens: [B, K].
        q: [B, K, V], what the tokens of rows that draw their drafts were drawn from; None if no row draws.
        buckets: [B], of the tokens; empty without.
    """
    drafts = []
    for i, order in enumerate(orders):
        length = min(order.gamma, tokens.shape[1])
        own = q[i, :length] if q is not None and order.row.draws else None
        drafts.append(
            Draft(tokens[i, :length], chain(length), own, buckets=buckets[i] if buckets else (), steps=order.gamma)
        )
    return drafts
