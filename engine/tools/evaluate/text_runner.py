"""A target that has read a text to its end, and answers drafts with what the text says instead of computing."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

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


@dataclass(frozen=True, slots=True)
class Reading:
    """What the target made of a text of L tokens, read in one go."""

    text: Text
    following: list[int]
    """[L]: the token behind each; the last one's is itself."""
    states: Tensor | None
    """[L - 1, taps x hidden]: the tapped hidden states; None where no drafter asks for them."""
    likeliest: list[list[int]]
    """[tokens of the reply][`BRANCHES`]: what the target found likeliest in the place of each, in order."""
    logits: Tensor | None
    """[tokens of the reply, V], float32, of what stands in the place of each; None for greedy texts."""
    seconds: float
    """Time of the reading."""
    pass_s: float
    """Time of a plain pass at the end of the text."""
    slot: int = 0
    """Of the target's cache, that it was read in."""

    @property
    def agreed(self) -> int:
        """Tokens of the reply that are the target's own greedy choice."""
        return sum(ranks[0] == token for ranks, token in zip(self.likeliest, self.text.reply, strict=True))


def passes(target: Runner, text: Text, chunk: int, slot: int = 0) -> Iterator[tuple[Tensor | None, Tensor | None]]:
    """Read a text in chunks of so many tokens: first its prompt, for its keys and values, then its reply to be judged.

    Yields:
        Logits [T, V], which the T next tokens of the reply are judged by, None in the prompt; and the tapped hidden
        states [1, T, taps x hidden], None without taps. Both are good until the next pass.
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
    """Read a text with the target, a chunk of so many tokens a step; its logits are kept where the text was sampled."""
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


def _plain_pass(target: Runner, tokens: Sequence[int], slot: int) -> float:
    """Median seconds of a pass over the text's last token, its choice on the host included."""
    fed = to_device([[tokens[-1]]], target.device)
    times = []
    for _ in range(_PASSES):
        started = time.perf_counter()
        target.forward(fed, [slot], [len(tokens) - 1]).argmax(-1).tolist()
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
    """A `Runner` that says of a sampled text what the target said, and of all texts how large the target is.

    What it says of drafts that leave the text means nothing: nobody asks for it.

    Args:
        target: for its sizes, and for what rides in its passes.
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
        """Of the text that is being drafted along."""

    def width(self, length: int) -> int:
        """Nothing is padded."""
        return length

    def forward(self, tokens: Tensor, slots: Sequence[int], starts: Sequence[int]) -> Tensor:
        """Logits [1, T, V], float32, of the places that tokens stand in."""
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
        """Logits as `forward`, and the states that were read at the same places; what rides is read by the target."""
        assert self.reading is not None
        if entered is not None:
            said, states = self.forward_tapped(tokens, slots, starts)
            ridden = self.target.forward_tapped(tokens, slots, starts, tree_mask, lengths, entered)[0]
            return torch.cat([said, ridden[:, tokens.shape[1] :].float()], dim=1), states
        assert self.reading.logits is not None
        depths = torch.arange(tokens.shape[1], device=self.device)[None] if tree_mask is None else tree_mask.depths
        places = to_device(starts, self.device)[:, None] + depths
        logits, states, first = self.reading.logits, self.reading.states, len(self.reading.text.prompt) - 1
        tapped = None if states is None else states[places.clamp(max=len(states) - 1)]
        return logits[(places - first).clamp(0, len(logits) - 1)], tapped

    def extend(self, places: Sequence[TreePlace]) -> Tensor:
        """Not asked for: drafters know the target itself."""
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
