"""A target that has read a text to its end, and answers drafts with what the text says instead of computing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

from specchat.engine.request import MAX_GAMMA
from specchat.engine.runner.kv_cache import KVCache
from specchat.engine.runner.runner import Runner
from specchat.engine.runner.to_device import to_device
from specchat.engine.runner.tree import BRANCHES, Tree
from specchat.engine.runner.tree_mask import TreeMask
from specchat.engine.tools.evaluate.texts import Text

_SLOT = 0
_PASSES = 5
"""Plain passes timed for each text."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What the target made of a text of L tokens, read in one go."""

    text: Text
    following: Tensor
    """[L], int64: the token behind each; the last one's is itself."""
    states: Tensor | None
    """[L - 1, taps x hidden]: the tapped hidden states; None where no drafter asks for them."""
    likeliest: Tensor
    """[tokens of the reply, `BRANCHES`], int64: what the target found likeliest in the place of each, in order."""
    seconds: float
    """Time of the reading."""
    pass_s: float
    """Time of a plain pass at the end of the text."""

    @property
    def agreed(self) -> int:
        """Tokens of the reply that are the target's own greedy choice."""
        return sum(map(int.__eq__, self.likeliest[:, 0].tolist(), self.text.reply))


@torch.inference_mode()
def read(target: Runner, text: Text, chunk: int) -> Reading:
    """Read a text with the target, in chunks of so many tokens: the prompt's for their states, the reply's judged."""
    tokens = [*text.prompt, *text.reply]
    started = time.perf_counter()
    states: list[Tensor] = []
    likeliest: list[Tensor] = []
    place, first = 0, len(text.prompt) - 1
    while place < len(tokens) - 1:
        end = min(place + chunk, first if place < first else len(tokens) - 1)
        fed = to_device([tokens[place:end]], target.device)
        if place < first:
            tapped = target.prefill(fed, [_SLOT], [place])
        else:
            logits, tapped = target.forward_tapped(fed, [_SLOT], [place])
            likeliest.append(logits[0].topk(BRANCHES).indices)
        if tapped is not None:
            states.append(tapped[0].clone())
        place = end
    seconds = time.perf_counter() - started
    following = to_device([*tokens[1:], tokens[-1]], target.device)
    tapped_states = torch.cat(states) if states else None
    return Reading(text, following, tapped_states, torch.cat(likeliest), seconds, _plain_pass(target, tokens))


def _plain_pass(target: Runner, tokens: Sequence[int]) -> float:
    """Median seconds of a pass over the text's last token, its choice on the host included."""
    fed = to_device([[tokens[-1]]], target.device)
    times = []
    for _ in range(_PASSES):
        started = time.perf_counter()
        target.forward(fed, [_SLOT], [len(tokens) - 1]).argmax(-1).tolist()
        times.append(time.perf_counter() - started)
    return median(times)


class _NoCache:
    """A cache of which nothing is kept: what follows in the text does not depend on it.

    Args:
        cache: whose size it has.
    """

    def __init__(self, cache: KVCache) -> None:
        self.slots, self.columns = cache.slots, cache.columns

    def keep(self, slots: Tensor, starts: Tensor, path: Tensor) -> None:
        """Do nothing."""


class TextRunner:
    """A `Runner` whose greedy choice behind every token of the text is the text's next one.

    What it says of drafts that leave the text means nothing: nobody judges what follows a rejected token.

    Args:
        target: for its sizes.
    """

    branches = True
    judges_all = False
    graph_runner = None
    hindrances: list[str] = []  # noqa: RUF012 never written to

    def __init__(self, target: Runner) -> None:
        self.cache: Any = _NoCache(target.cache)
        self.context, self.device, self.vocabulary = target.context, target.device, target.vocabulary
        self.taps, self.short_context = target.taps, target.short_context
        self.embedding_rows, self.output_rows = target.embedding_rows, target.output_rows
        self.reading: Reading | None = None
        """Of the text that is being drafted along."""
        self._logits = torch.zeros(1, MAX_GAMMA + 1, target.vocabulary, device=target.device)
        """All 0 between passes: a fresh tensor of this size would cost more than all else of a round."""
        self._said: Tensor | None = None
        """[T, 1 + `BRANCHES`], the tokens that the last pass has set, by place."""
        self._shares = 0.5 / torch.arange(1, BRANCHES + 1, device=target.device)
        """Logits of the likeliest tokens beside the text's own."""

    def width(self, length: int) -> int:
        """Nothing is padded."""
        return length

    def forward(self, tokens: Tensor, slots: Sequence[int], starts: Sequence[int]) -> Tensor:
        """Logits [1, T, V], float32, T up to `MAX_GAMMA` + 1: 1 for the text's next token, less for others that the
        target found likely, 0 for all else. They are good until the next pass."""
        return self.forward_tapped(tokens, slots, starts)[0]

    forward_as_it_comes = forward

    @torch.inference_mode()
    def forward_tapped(
        self,
        tokens: Tensor,
        slots: Sequence[int],  # noqa: ARG002 one text, one row
        starts: Sequence[int],
        tree_mask: TreeMask | None = None,
        lengths: Sequence[int] | None = None,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor | None]:
        """Logits as `forward`, and the states that were read at the same places."""
        assert self.reading is not None
        depths = torch.arange(tokens.shape[1], device=self.device)[None] if tree_mask is None else tree_mask.depths
        following, states = self.reading.following, self.reading.states
        places = (to_device(starts, self.device)[:, None] + depths).clamp(max=len(following) - 1)
        if self._said is not None:
            self._logits[0, : len(self._said)].scatter_(1, self._said, 0.0)
        next_ones, first = following[places[0]][:, None], len(self.reading.text.prompt) - 1
        likeliest = self.reading.likeliest[(places[0] - first).clamp(0, len(self.reading.likeliest) - 1)]
        self._said = torch.cat([likeliest, next_ones], dim=1)
        logits = self._logits[0, : len(likeliest)]
        logits.scatter_(1, likeliest, self._shares.expand_as(likeliest)).scatter_(1, next_ones, 1.0)
        return self._logits[:, : places.shape[1]], None if states is None else states[places.clamp(max=len(states) - 1)]

    def forward_branches(self, tokens: Tensor, slot: int, start: int, tree: Tree) -> Tensor:
        """Not asked for: beams are searched with the target itself."""
        raise NotImplementedError

    def first_layers(self, count: int) -> Runner:
        """Not asked for: drafters know the target itself."""
        raise NotImplementedError

    def capture(self) -> None:
        """There is nothing to capture."""

    def prefill(
        self, tokens: Tensor, slots: Sequence[int], starts: Sequence[int], lengths: Sequence[int] | None = None
    ) -> Tensor | None:
        """Not asked for: the text has been read."""
        raise NotImplementedError
