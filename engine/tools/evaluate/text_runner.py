"""Reading of a text by the target, and a runner that answers drafts from that reading instead of computing."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeVar

import torch
from torch import Tensor

from specchat.engine.backends.runner import Runner
from specchat.engine.cache.kv_cache import KVCache
from specchat.engine.decoding.tree import BRANCHES
from specchat.engine.decoding.tree_mask import TreeMask
from specchat.engine.decoding.tree_part import TreePlace
from specchat.engine.device.to_device import to_device
from specchat.engine.tools.evaluate.texts import Text

_PASSES = 5
"""Plain passes timed for each text."""
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Reading:
    """Results of the target on a text of L tokens."""

    text: Text
    following: list[int]
    """[L]: the next token of each; for the last one, itself."""
    states: Tensor | None
    """[L - 1, taps x hidden]: the tapped hidden states; None if no drafter uses them."""
    likeliest: list[list[int]]
    """[tokens of the reply][`BRANCHES`]: the target's most likely tokens at each position, in order."""
    logits: Tensor | None
    """[tokens of the reply, V], float32, at each position; None for greedy texts."""
    seconds: float
    """Time of the reading."""
    pass_s: float
    """Time of a plain pass at the end of the text."""
    slot: int = 0
    """Slot of the target's cache."""

    @property
    def agreed(self) -> int:
        """Tokens of the reply that are the target's own greedy choice."""
        return sum(ranks[0] == token for ranks, token in zip(self.likeliest, self.text.reply, strict=True))


def passes(target: Runner, text: Text, chunk: int, slot: int = 0) -> Iterator[tuple[Tensor | None, Tensor | None]]:
    """Read a text in chunks of `chunk` tokens: first its prompt, for keys and values, then its reply.

    Yields:
        Logits [T, V] of the T next tokens of the reply, None in the prompt; and the tapped hidden states
        [1, T, taps x hidden], None without taps. Both are valid until the next pass.
    """
    tokens = [*text.prompt, *text.reply]
    place, first = 0, len(text.prompt) - 1
    while place < len(tokens) - 1:
        end = min(place + chunk, first if place < first else len(tokens) - 1)
        fed = to_device([tokens[place:end]], target.device)
        if place < first:
            yield None, target.prefill(fed, [slot], [place])
        else:
            logits, tapped = target.forward_tapped(fed, [slot], [place])
            yield logits[0], tapped
        place = end


@torch.inference_mode()
def read(
    target: Runner, text: Text, chunk: int, *, sampled: bool = False, slot: int = 0
) -> Generator[None, None, Reading]:
    """Read a text with the target, a chunk per step of the generator. Logits are kept if the text was sampled."""
    tokens = [*text.prompt, *text.reply]
    started = time.perf_counter()
    states: list[Tensor] = []
    likeliest: list[Tensor] = []
    kept: list[Tensor] = []
    for logits, tapped in passes(target, text, chunk, slot):
        if logits is not None:
            likeliest.append(logits.topk(BRANCHES).indices)
            if sampled:
                kept.append(logits.float().clone())
        if tapped is not None:
            states.append(tapped[0].clone())
        yield
    seconds = time.perf_counter() - started
    tapped_states = torch.cat(states) if states else None
    return Reading(
        text,
        [*tokens[1:], tokens[-1]],
        tapped_states,
        torch.cat(likeliest).tolist(),
        torch.cat(kept) if kept else None,
        seconds,
        _plain_pass(target, tokens, slot),
        slot,
    )


def finish(steps: Generator[None, None, _Result]) -> _Result:
    """Run a generator to its end; returns its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: _Result = end.value
            return result


def _plain_pass(target: Runner, tokens: Sequence[int], slot: int) -> float:
    """Median seconds of a pass over the text's last token, with the copy of its argmax to the host."""
    fed = to_device([[tokens[-1]]], target.device)
    times = []
    for _ in range(_PASSES):
        started = time.perf_counter()
        target.forward(fed, [slot], [len(tokens) - 1]).argmax(-1).tolist()
        times.append(time.perf_counter() - started)
    return median(times)


class _NoCache:
    """A cache that keeps nothing: the next token of the text does not depend on it.

    Args:
        cache: gives the size.
    """

    def __init__(self, cache: KVCache) -> None:
        self.slots, self.columns = cache.slots, cache.columns

    def keep(self, slots: Tensor, starts: Tensor, path: Tensor) -> None:
        """Do nothing."""


class TextRunner:
    """A `Runner` with the target's sizes that returns the logits of a sampled text's reading.

    Logits after a draft that differs from the text are undefined.

    Args:
        target: gives the sizes, and computes look-ahead positions.
    """

    branches = True
    judges_all = False
    graph_runner = None
    hindrances: list[str] = []  # noqa: RUF012 never written to

    def __init__(self, target: Runner) -> None:
        self.target = target
        self.cache: Any = _NoCache(target.cache)
        self.context, self.device, self.vocabulary = target.context, target.device, target.vocabulary
        self.taps, self.short_context = target.taps, target.short_context
        self.embedding_rows, self.output_rows = target.embedding_rows, target.output_rows
        self.reading: Reading | None = None
        """Reading of the text that is being drafted for."""

    def width(self, length: int) -> int:
        """Width without padding."""
        return length

    def forward(self, tokens: Tensor, slots: Sequence[int], starts: Sequence[int]) -> Tensor:
        """Logits [1, T, V], float32, at the positions of tokens."""
        return self.forward_tapped(tokens, slots, starts)[0]

    forward_as_it_comes = forward

    @torch.inference_mode()
    def forward_tapped(
        self,
        tokens: Tensor,
        slots: Sequence[int],
        starts: Sequence[int],
        tree_mask: TreeMask | None = None,
        lengths: Sequence[int] | None = None,
        entered: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Logits as `forward`, and the hidden states of the reading; the target computes look-ahead positions."""
        assert self.reading is not None
        if entered is not None:
            known, states = self.forward_tapped(tokens, slots, starts)
            computed = self.target.forward_tapped(tokens, slots, starts, tree_mask, lengths, entered)[0]
            return torch.cat([known, computed[:, tokens.shape[1] :].float()], dim=1), states
        assert self.reading.logits is not None
        depths = torch.arange(tokens.shape[1], device=self.device)[None] if tree_mask is None else tree_mask.depths
        places = to_device(starts, self.device)[:, None] + depths
        logits, states, first = self.reading.logits, self.reading.states, len(self.reading.text.prompt) - 1
        tapped = None if states is None else states[places.clamp(max=len(states) - 1)]
        return logits[(places - first).clamp(0, len(logits) - 1)], tapped

    def extend(self, places: Sequence[TreePlace]) -> Tensor:
        """Unsupported: drafters use the target itself."""
        raise NotImplementedError

    def first_layers(self, count: int) -> Runner:
        """Unsupported: drafters use the target itself."""
        raise NotImplementedError

    def capture(self) -> None:
        """Do nothing."""

    def prefill(
        self, tokens: Tensor, slots: Sequence[int], starts: Sequence[int], lengths: Sequence[int] | None = None
    ) -> Tensor | None:
        """Unsupported: the text has been read."""
        raise NotImplementedError
