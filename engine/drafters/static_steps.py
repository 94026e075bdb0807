"""Draft steps of a draft model in fixed shapes: the first step and every further one are a CUDA graph each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specchat.engine.backends.cuda_graphs import GraphRunner
from specchat.engine.backends.region import Numbers
from specchat.engine.drafters.step_graphs import StepGraphs
from specchat.engine.request import MAX_GAMMA
from specchat.engine.sampling.sampler import draw, most_likely, standardise
from specchat.engine.sampling.sampling_rows import SamplingFlags, SamplingRows
from specchat.engine.sequence.sequence import SequenceState

_MOST = 512
"""Shapes that are kept."""


class StaticSteps:
    """The draft steps of a draft model on a GPU: each drafts the token after the one before.

    Args:
        passes: of the draft model.
        fit: logits of the draft model over the target's vocabulary.
        vocabulary: V, of the target.
        lead: tokens fed in the first step.
    """

    def __init__(self, passes: GraphRunner, fit: Callable[[Tensor], Tensor], vocabulary: int, lead: int) -> None:
        self._fit = fit
        self._lead = lead
        integers = {"start": (), "fed": (lead,)}
        self._graphs = StepGraphs(passes, vocabulary, MAX_GAMMA, integers, self._first, self._further, _MOST)

    @property
    def bytes(self) -> int:
        """Memory of distributions."""
        return self._graphs.bytes

    def capture(self) -> None:
        """Capture the steps for all numbers of rows and columns."""
        self._graphs.capture()

    def draft(self, rows: Sequence[SequenceState], steps: int, u: NDArray[np.float64]) -> tuple[Tensor, Tensor | None]:
        """Tokens [B, steps] and, unless all rows are greedy, their distributions [B, steps, V].

        Args:
            rows: B, of which all but the last `lead` tokens are cached.
            steps: at least 1.
            u: [B, steps], uniforms.
        """
        start = [len(row.tokens) - self._lead for row in rows]
        fed = [row.tokens[-self._lead :] for row in rows]
        return self._graphs.draft(rows, steps, {"start": start, "fed": fed, "u": u}, steps, steps)

    def _first(self, numbers: Numbers, columns: int, flags: SamplingFlags) -> None:
        self._graphs.at.zero_()
        self._step(numbers["fed"], numbers["start"], numbers, columns, flags)

    def _further(self, numbers: Numbers, columns: int, flags: SamplingFlags) -> None:
        at, start = self._graphs.at, numbers["start"]
        at.add_(1).clamp_(max=MAX_GAMMA - 1)
        fed = self._graphs.tokens[: len(start)].gather(1, (at - 1).expand(len(start), 1))
        self._step(fed, start + self._lead - 1 + at, numbers, columns, flags)

    def _step(self, fed: Tensor, start: Tensor, numbers: Numbers, columns: int, flags: SamplingFlags) -> None:
        """Draft a token after the last one of [rows, T], which are written from columns `start` [rows] on."""
        at, (rows, width) = self._graphs.at, fed.shape
        positions = start[:, None] + torch.arange(width, device=fed.device)
        logits = self._fit(self._graphs.read(fed, positions, numbers, columns)[:, -1:])
        if flags.all_greedy:
            token = most_likely(logits)
        else:
            drawn_from = standardise(logits, SamplingRows.from_numbers(numbers["settings"], flags))
            self._graphs.q(rows).index_copy_(1, at, drawn_from)
            token = draw(drawn_from[:, 0], numbers["u"].gather(1, at.expand(rows, 1))[:, 0])[:, None]
        self._graphs.tokens[:rows].scatter_(1, at.expand(rows, 1), token)
