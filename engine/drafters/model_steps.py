"""Draft steps of a network that drafts token by token: one forward pass for all rows each, on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from specchat.engine.device.graphs import Graphs, Inputs, Signature
from specchat.engine.device.to_device import to_device
from specchat.engine.sampling.penalties import Penalties
from specchat.engine.sampling.sampler import draw, most_likely, standardise
from specchat.engine.sampling.sampling_rows import NUMBERS, SamplingFlags, SamplingRows, setting_numbers
from specchat.engine.sequence.sequence import SequenceState


class Network(Protocol):
    """What drafts token by token: the backend of a model, or a table of counts."""

    @property
    def device(self) -> torch.device:
        """Where its logits are."""

    def forward(self, inputs: Tensor, slots: Sequence[int], starts: Sequence[int]) -> Tensor:
        """Logits [B, T or 1, V] after tokens [B, T], int64, or after the last of them."""

    def graphs(self, most: int) -> Graphs:
        """Captured functions on its device."""


class ModelSteps:
    """The steps of one network.

    Args:
        network: draft steps are passes of it.
        penalties: shared with the target, so that p and q know the same context.
        vocabulary: V, the size of the target's distributions; what the network has beyond it is never drafted.
    """

    def __init__(self, network: Network, penalties: Penalties, vocabulary: int) -> None:
        self._network = network
        self._device = network.device
        self._penalties = penalties
        self._vocabulary = vocabulary
        self._graphs = network.graphs(128)

    @property
    def graph_bytes(self) -> int:
        """Memory of distributions, on a GPU."""
        return self._graphs.bytes

    @torch.inference_mode()
    def draft(
        self, rows: Sequence[SequenceState], lead: int, steps: int, u: NDArray[np.float64]
    ) -> tuple[Tensor, Tensor | None]:
        """Tokens [B, steps] and, unless all rows are greedy, their distributions [B, steps, V].

        Args:
            rows: B, of which all but the last `lead` tokens are cached.
            lead: tokens fed in the first step.
            steps: at least 1.
            u: [B, steps], uniforms.
        """
        sampling = [row.request.sampling for row in rows]
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
            token, q = self._choose(logits, SamplingFlags.of(sampling).strict, setting_numbers(sampling), u[:, step])
            if q is not None:
                distributions.append(q)
            starts = [start + fed.shape[1] for start in starts]
            fed = token[:, None]
            tokens = torch.cat([tokens, fed], dim=1)
        return tokens, torch.stack(distributions, 1) if distributions else None

    def _choose(
        self, logits: Tensor, flags: SamplingFlags, settings: NDArray[np.float64], u: NDArray[np.float64]
    ) -> tuple[Tensor, Tensor | None]:
        """The next tokens [B] from logits [B, 1, V], and the distributions [B, V] that they were drawn from."""
        if flags.all_greedy:
            return most_likely(logits)[:, 0], None
        rows = self._graphs.count(len(logits))
        flags = flags.coarse(rows) if self._graphs.enabled else flags

        def run(inputs: Inputs) -> list[Tensor]:
            q = standardise(inputs["logits"], SamplingRows.from_numbers(inputs["settings"], flags))[:, 0]
            return [draw(q, inputs["u"]), q]

        def signature() -> Signature:
            shape = rows, 1, self._vocabulary
            return Signature({}, {"settings": (rows, NUMBERS), "u": (rows,)}, {"logits": (shape, torch.float32)})

        numbers: dict[str, ArrayLike] = {"settings": settings, "u": u}
        token, q = self._graphs.call((rows, flags), run, signature, numbers, {"logits": logits})
        if self._graphs.enabled:  # the next step overwrites them
            token, q = token[: len(logits)].clone(), q[: len(logits)].clone()
        return token, q

    @torch.inference_mode()
    def after_last(self, rows: Sequence[SequenceState], lead: int) -> Tensor:
        """Logits [B, V] of what follows each row's last token, of which all but the last `lead` tokens are cached."""
        fed = to_device([row.tokens[-lead:] for row in rows], self._device)
        starts = [len(row.tokens) - lead for row in rows]
        return self.fit(self._network.forward(fed, [row.slot for row in rows], starts)[:, -1])

    def fit(self, logits: Tensor) -> Tensor:
        """Logits over the target's vocabulary: padding tails differ between models of one family.

        Tokens that the network has not get the least finite logit: the kernels take an infinite one for a fault.
        """
        missing = self._vocabulary - logits.shape[-1]
        if missing <= 0:
            return logits[..., : self._vocabulary]
        return torch.nn.functional.pad(logits, (0, missing), value=torch.finfo(logits.dtype).min)
