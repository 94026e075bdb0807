"""Reading of a text by the target, and a backend that answers drafts from that reading instead of computing."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from specchat.engine.backends.tensor_acceptance import TensorVerdict
from specchat.engine.backends.tensor_backend import TensorBackend
from specchat.engine.decoding.backend import Backend
from specchat.engine.decoding.tree import BRANCHES
from specchat.engine.decoding.tree_mask import TreeMask
from specchat.engine.decoding.tree_part import TreePlace
from specchat.engine.device.to_device import to_device
from specchat.engine.sampling.sampler import one_hot
from specchat.engine.sequence.sequence import SequenceState
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


def passes(target: Backend, text: Text, chunk: int, slot: int = 0) -> Iterator[tuple[Tensor | None, Tensor | None]]:
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
            logits, tapped = target.forward_with_states(fed, [slot], [place])
            yield logits[0], tapped
        place = end


@torch.inference_mode()
def read(
    target: Backend, text: Text, chunk: int, *, sampled: bool = False, slot: int = 0
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


def _plain_pass(target: Backend, tokens: Sequence[int], slot: int) -> float:
    """Median seconds of a pass over the text's last token, with the copy of its argmax to the host."""
    fed = to_device([[tokens[-1]]], target.device)
    times = []
    for _ in range(_PASSES):
        started = time.perf_counter()
        target.forward(fed, [slot], [len(tokens) - 1]).argmax(-1).tolist()
        times.append(time.perf_counter() - started)
    return median(times)


class TextBackend(TensorBackend):
    """A backend with the target's sizes whose logits are those of a reading: the text's own tokens if it is greedy.

    Logits after a draft that differs from the text are undefined. Drafters use the target itself.

    Args:
        target: gives the sizes.
    """

    short_context: int | None = None
    performance_warnings: ClassVar[list[str]] = []

    def __init__(self, target: Backend) -> None:
        self.context, self.device, self.vocabulary = target.context, target.device, target.vocabulary
        self.taps, self.cache = target.taps, target.cache
        self.embedding_rows, self.output_rows = target.embedding_rows, target.output_rows
        self.reading: Reading | None = None
        """Reading of the text that is being drafted for."""
        super().__init__(target.cache.slots, target.context, None)

    def width(self, length: int) -> int:
        """Width without padding."""
        return length

    def keep(self, rows: Sequence[SequenceState], verdict: TensorVerdict) -> None:
        """Do nothing: the reading does not depend on the cache."""

    def extend(self, places: Sequence[TreePlace]) -> Tensor:
        """Unsupported: drafters use the target itself."""
        raise NotImplementedError

    def prefill(
        self, tokens: Tensor, slots: Sequence[int], starts: Sequence[int], lengths: Sequence[int] | None = None
    ) -> Tensor | None:
        """Unsupported: the text has been read."""
        raise NotImplementedError

    def _forward(
        self, inputs: Tensor, slots: Sequence[int], starts: Sequence[int], tree_mask: TreeMask | None = None
    ) -> tuple[Tensor, Tensor | None]:
        reading = self.reading
        assert reading is not None
        del slots  # all rows are of one text
        depths = torch.arange(inputs.shape[1], device=self.device)[None] if tree_mask is None else tree_mask.depths
        places = to_device(starts, self.device)[:, None] + depths
        states, first = reading.states, len(reading.text.prompt) - 1
        tapped = None if states is None else states[places.clamp(max=len(states) - 1)]
        if reading.logits is not None:
            return reading.logits[(places - first).clamp(0, len(reading.logits) - 1)], tapped
        following = to_device(reading.following, self.device)[places.clamp(max=len(reading.following) - 1)]
        return one_hot(following, self.vocabulary), tapped
