"""Look-ahead drafter: parallel speculative sampling (PaSS, Monea et al. 2023, arXiv 2311.13581).

A few trained embeddings stand for the next tokens: what the target says at them is the next draft, all positions of it
at once. They ride in the verifying pass (`engine.decoding.riders`), behind every token of it, so that a round needs
no pass of its own for drafting. The target's own output has chosen the token behind the accepted ones; the first
embedding stands for it, and what is said there is the distribution of the first drafted token.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specchat.engine.backends.runner import Runner
from specchat.engine.decoding.drafter import Drafter
from specchat.engine.decoding.gamma.budget import Budget
from specchat.engine.decoding.proposal import Draft
from specchat.engine.device.to_device import to_device
from specchat.engine.sampling.penalties import Penalties
from specchat.engine.sampling.rng import Stream, uniforms
from specchat.engine.sampling.sampler import draw, most_likely, standardise
from specchat.engine.sampling.sampling_rows import SamplingRows
from specchat.engine.sequence.sequence import SequenceState


class LookAheadDrafter(Drafter):
    """The target as its own draft.

    Drafts are chains. A row's first round has none, as nothing has ridden before it.

    Args:
        embeddings: [n, d], of the n positions that it can draft for.
        target: whose passes carry them.
        penalties: shared with the target, so that p and q know the same context.
    """

    name = "pass"

    def __init__(self, embeddings: Tensor, target: Runner, penalties: Penalties) -> None:
        self._embeddings = embeddings.to(target.device)
        self._device = target.device
        self._penalties = penalties
        self._nothing = torch.empty(0, target.vocabulary, device=target.device)
        self._seen: dict[int, tuple[int, Tensor]] = {}
        """Per slot, the length of the text at its next round, and the logits [n, V] of what follows."""

    def admit(self, row: SequenceState) -> None:
        """Nothing has ridden yet."""
        self._seen.pop(row.slot, None)

    def release(self, row: SequenceState) -> None:
        """Forget what has ridden."""
        self._seen.pop(row.slot, None)

    def riders(self, row: SequenceState, gamma: int) -> Tensor | None:  # noqa: ARG002
        """As many as the next draft may be long."""
        return self._embeddings[:gamma] if gamma else None

    def foresee(self, row: SequenceState, accepted: int, logits: Tensor) -> None:
        """Keep what is to be drafted behind the token that the round ends with."""
        self._seen[row.slot] = len(row.tokens) + accepted + 1, logits

    @torch.inference_mode()
    def propose(
        self,
        rows: Sequence[SequenceState],
        gammas: Sequence[int],
        budgets: Sequence[Budget | None] = (),  # noqa: ARG002
    ) -> Draft:
        """A token for each position that has ridden; q is kept unless every row is greedy."""
        seen = [self._logits(row)[:gamma] for row, gamma in zip(rows, gammas, strict=True)]
        lengths = [len(each) for each in seen]
        steps, count = max(lengths), len(rows)
        if not steps:
            return Draft([[] for _ in rows], lengths)
        said = torch.nn.utils.rnn.pad_sequence(seen, batch_first=True)
        settings = SamplingRows.of([row.request.sampling for row in rows], self._device)
        seeds, numbers = [row.seed for row in rows], [row.rounds for row in rows]
        u = to_device(uniforms(seeds, numbers, Stream.DRAFT, steps), self._device)
        adjustment = self._penalties.of(rows)
        tokens = torch.empty(count, 0, dtype=torch.long, device=self._device)
        distributions: list[Tensor] = []
        for step in range(steps):
            logits = said[:, step : step + 1]
            if adjustment is not None:
                logits = adjustment.apply(logits, tokens, first=step)
            if settings.flags.all_greedy:
                token = most_likely(logits)[:, 0]
            else:
                distributions.append(standardise(logits, settings)[:, 0])
                token = draw(distributions[-1], u[:, step])
            tokens = torch.cat([tokens, token[:, None]], dim=1)
        return Draft(tokens, lengths, torch.stack(distributions, 1) if distributions else None)

    def _logits(self, row: SequenceState) -> Tensor:
        """What has ridden behind the row's text, [n, V]; n is 0 where nothing has."""
        length, logits = self._seen.get(row.slot, (0, self._nothing))
        return logits.float() if length == len(row.tokens) else self._nothing
