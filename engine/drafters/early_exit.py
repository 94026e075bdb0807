"""Early exit: the target's first layers and its own output layer draft for it, in its own cache (self-speculation).

As in "Draft & Verify" (Zhang et al. 2023) and LayerSkip (Elhoushi et al. 2024), without training. A draft step writes
keys and values of the first layers where the verifying pass then writes those of all layers, so nothing is computed
for the cache alone, and nothing that was drafted stays in it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specchat.engine.backends.runner import Runner
from specchat.engine.cache.kv_cache import KVCache
from specchat.engine.decoding.drafter import Drafter
from specchat.engine.decoding.gamma.budget import Budget
from specchat.engine.decoding.proposal import Draft
from specchat.engine.device.padding import padded_width
from specchat.engine.device.to_device import to_device
from specchat.engine.drafters.model_steps import ModelSteps
from specchat.engine.request import MAX_GAMMA
from specchat.engine.sampling.penalties import Penalties
from specchat.engine.sampling.rng import Stream, uniforms
from specchat.engine.sequence.sequence import SequenceState
from specchat.engine.stats.theory import optimal_gamma, speedup

_SHARES = (0.25, 0.4, 0.5, 0.6, 0.75, 0.85, 0.95)
"""Of the layers, that are tried."""
SAMPLE = (
    "The river rises in the hills, and by the time it reaches the town it is wide and slow. People have lived on its "
    "banks for a thousand years. They fish, they build boats, and in spring, when the snow melts, they move their "
    "houses to higher ground.\n\ndef total(prices):\n    return sum(price for price in prices if price > 0)\n"
)
"""A text to choose the depth by."""


class EarlyExitDrafter(Drafter):
    """The target cut off behind its first n layers; n is chosen when it is first asked.

    For n the target reads a short text in full and cut off at several depths: how often the likeliest tokens agree is
    the α of each, and by theory (Leviathan et al. 2023, Theorem 3.8) the n with the largest speedup is taken. It does
    not depend on what was measured in time, so that seeded replies repeat. On a GPU its steps are captured when they
    are first asked for: a start need not wait for what few ask for.

    Args:
        target: its cache is used.
        penalties: shared with the target, so that p and q know the same context.
        layers: of the target.
        head: what scoring costs, in layers.
        sample: tokens of the text that n is chosen by.

    Raises:
        EngineError: the target cannot be cut off.
    """

    name = "early-exit"

    def __init__(self, target: Runner, penalties: Penalties, layers: int, head: float, sample: Sequence[int]) -> None:
        self._target = target
        self._penalties = penalties
        self._layers, self._head = layers, head
        self._sample = list(sample[: target.context])
        self._steps: ModelSteps | None = None
        self.depth: int | None = None
        """n, once it has been chosen."""
        target.first_layers(1)  # says so now if that cannot be had
        if target.device.type != "cpu":  # no round may wait for the device, and reading is quick there
            self._cut_off(0)

    @property
    def graph_bytes(self) -> int:
        """Memory of distributions."""
        return self._steps.graph_bytes if self._steps else 0

    def propose(
        self,
        rows: Sequence[SequenceState],
        gammas: Sequence[int],
        budgets: Sequence[Budget | None] = (),  # noqa: ARG002
    ) -> Draft:
        """`max(gammas)` draft steps for all rows; q is kept unless every row is greedy."""
        drafting, steps = self._steps or self._cut_off(rows[0].slot), max(gammas)
        u = uniforms([row.seed for row in rows], [row.rounds for row in rows], Stream.DRAFT, steps)
        # The target has read all tokens but the last.
        tokens, q = drafting.draft(rows, 1, steps, u)
        return Draft(tokens, list(gammas), q)

    def _cut_off(self, slot: int) -> ModelSteps:
        """The steps of the first n layers, with n chosen in this slot."""
        self.depth = self._choose(slot)
        part = self._target.first_layers(self.depth)
        self._steps = ModelSteps(part, self._penalties, self._target.vocabulary, lead=1)
        return self._steps

    @torch.inference_mode()
    def _choose(self, slot: int) -> int:
        """n for the largest speedup; what is in the slot stays in it."""
        fed = to_device([self._sample], self._target.device)
        kept = _columns(self._target.cache, slot, len(self._sample))
        try:
            whole = self._target.first_layers(self._layers).forward(fed, [slot], [0]).argmax(-1)
            best, best_speedup = 1, 0.0
            for depth in dict.fromkeys(max(1, min(round(share * self._layers), self._layers - 1)) for share in _SHARES):
                said = self._target.first_layers(depth).forward(fed, [slot], [0]).argmax(-1)
                alpha = (said == whole).double().mean().item()
                c = (depth + self._head) / (self._layers + self._head)
                found = speedup(alpha, max(1, optimal_gamma(alpha, c, MAX_GAMMA)), c)
                if found > best_speedup:
                    best, best_speedup = depth, found
        finally:
            for place, values in kept:
                place.copy_(values)
        return best


def _columns(cache: KVCache, slot: int, length: int) -> list[tuple[Tensor, Tensor]]:
    """The first columns of a slot in every layer, and copies of them."""
    width = min(padded_width(length), cache.columns)
    places = [layer[slot, :, :width] for layer in (*cache.keys, *cache.values)]
    return [(place, place.clone()) for place in places]
