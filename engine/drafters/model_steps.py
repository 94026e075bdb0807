"""Draft steps of a network that drafts token by token: one forward pass for all rows each, on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specchat.engine.backends.cuda_graphs import GraphRunner
from specchat.engine.device.to_device import to_device
from specchat.engine.drafters.static_steps import StaticSteps
from specchat.engine.sampling.penalties import Penalties
from specchat.engine.sampling.sampler import draw, most_likely, standardise
from specchat.engine.sampling.sampling_rows import SamplingRows
from specchat.engine.sequence.sequence import SequenceState


class Network(Protocol):
    """What drafts token by token: a runner of a model, or a table of counts."""

    @property
    def device(self) -> torch.device:
        """Where its logits are."""

    @property
    def graph_runner(self) -> GraphRunner | None:
        """Passes of fixed shape, on a GPU."""

    def forward(self, tokens: Tensor, slots: Sequence[int], starts: Sequence[int]) -> Tensor:
        """Logits [B, T or 1, V] after tokens [B, T], int64, or after the last of them."""


class ModelSteps:
    """The steps of one network.

    Args:
        network: draft steps are passes of it.
        penalties: shared with the target, so that p and q know the same context.
        vocabulary: V, the size of the target's distributions; what the network has beyond it is never drafted.
        lead: tokens fed in the first step, where a row has as many.
    """

    def __init__(self, network: Network, penalties: Penalties, vocabulary: int, lead: int) -> None:
        self._network = network
        self._device = network.device
        self._penalties = penalties
        self._vocabulary = vocabulary
        self._lead = lead
        self._static: StaticSteps | None = None
        if network.graph_runner is not None:
            self._static = StaticSteps(network.graph_runner, self.fit, vocabulary, lead)

    @property
    def graph_bytes(self) -> int:
        """Memory of distributions, on a GPU."""
        return self._static.bytes if self._static else 0

    def capture(self) -> None:
        """On a GPU, capture all shapes."""
        if self._static:
            self._static.capture()

    def draft(
        self, rows: Sequence[SequenceState], lead: int, steps: int, u: NDArray[np.float64]
    ) -> tuple[Tensor, Tensor | None]:
        """Tokens [B, steps] and, unless all rows are greedy, their distributions [B, steps, V].

        Args:
            rows: B, of which all but the last `lead` tokens are cached.
            lead: tokens fed in the first step, fewer than usual where a row has no more.
            steps: at least 1.
            u: [B, steps], uniforms.
        """
        plain = not any(row.request.sampling.adjusts for row in rows)
        if self._static is not None and plain and lead == self._lead:
            return self._static.draft(rows, steps, u)
        return self._draft(rows, lead, steps, to_device(u, self._device))

    @torch.inference_mode()
    def after_last(self, rows: Sequence[SequenceState], lead: int) -> Tensor:
        """Logits [B, V] of what follows each row's last token, of which all but the last `lead` tokens are cached."""
        fed = to_device([row.tokens[-lead:] for row in rows], self._device)
        starts = [len(row.tokens) - lead for row in rows]
        return self.fit(self._network.forward(fed, [row.slot for row in rows], starts)[:, -1])

    @torch.inference_mode()
    def _draft(self, rows: Sequence[SequenceState], lead: int, steps: int, u: Tensor) -> tuple[Tensor, Tensor | None]:
        settings = SamplingRows.of([row.request.sampling for row in rows], self._device)
        slots = [row.slot for row in rows]
        starts = [len(row.tokens) - lead for row in rows]
        fed = to_device([row.tokens[-lead:] for row in rows], self._device)
        adjustment = self._penalties.of(rows)
        tokens = torch.empty(len(rows), 0, dtype=torch.long, device=self._device)
        distributions: list[Tensor] = []
        for step in range(steps):
            logits = self.fit(self._network.forward(fed, slots, starts)[:, -1:])
            if adjustment is not None:
                logits = adjustment.apply(logits, tokens, first=step)
            if settings.flags.all_greedy:
                token = most_likely(logits)[:, 0]
            else:
                q = standardise(logits, settings)[:, 0]
                distributions.append(q)
                token = draw(q, u[:, step])
            starts = [start + fed.shape[1] for start in starts]
            fed = token[:, None]
            tokens = torch.cat([tokens, fed], dim=1)
        return tokens, torch.stack(distributions, 1) if distributions else None

    def fit(self, logits: Tensor) -> Tensor:
        """Logits over the target's vocabulary: padding tails differ between models of one family.

        Tokens that the network has not get the least finite logit: the kernels take an infinite one for a fault.
        """
        missing = self._vocabulary - logits.shape[-1]
        if missing <= 0:
            return logits[..., : self._vocabulary]
        return torch.nn.functional.pad(logits, (0, missing), value=torch.finfo(logits.dtype).min)
