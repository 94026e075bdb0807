"""Reading of a text by the target: its logits, tapped hidden states and time, in chunks."""

from __future__ import annotations

import time
import timeit
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

import torch
from torch import Tensor

from specchat.engine.decoding.backend import Backend
from specchat.engine.device.device import to_device
from specchat.engine.tools.evaluate.texts import Text

_PASSES = 5
"""Plain passes timed for each text."""
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Reading:
    """Results of the target on a text of L tokens."""

    text: Text
    following: Tensor
    """[L]: the next token of each; for the last one, itself."""
    states: Tensor | None
    """[L - 1, taps x hidden]: the tapped hidden states; None if no drafter uses them."""
    logits: Tensor | None
    """[tokens of the reply, V], float32, at each position; None for greedy texts."""
    agreed: int
    """Tokens of the reply that are the target's own greedy choice."""
    seconds: float
    """Time of the reading."""
    pass_s: float
    """Time of a plain pass at the end of the text."""
    slot: int
    """Slot of the target's cache."""


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
    started = time.perf_counter()
    states: list[Tensor] = []
    chosen: list[Tensor] = []
    kept: list[Tensor] = []
    for logits, tapped in passes(target, text, chunk, slot):
        if logits is not None:
            chosen.append(logits.argmax(-1))
            if sampled:
                kept.append(logits.float().clone())
        if tapped is not None:
            states.append(tapped[0].clone())
        yield
    agreed = sum(map(int.__eq__, torch.cat(chosen).tolist(), text.reply))
    seconds = time.perf_counter() - started
    last = text.reply[-1]
    return Reading(
        text=text,
        following=to_device([*text.prompt[1:], *text.reply, last], target.device),
        states=torch.cat(states) if states else None,
        logits=torch.cat(kept) if kept else None,
        agreed=agreed,
        seconds=seconds,
        pass_s=_plain_pass(target, last, slot, len(text.prompt) + len(text.reply) - 1),
        slot=slot,
    )


def finish(steps: Generator[None, None, _Result]) -> _Result:
    """Run a generator to its end; returns its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: _Result = end.value
            return result


def _plain_pass(target: Backend, token: int, slot: int, place: int) -> float:
    """Median seconds of a pass over one token, with the copy of its argmax to the host."""
    fed = to_device([[token]], target.device)
    return median(
        timeit.repeat(lambda: target.forward(fed, [slot], [place]).argmax(-1).tolist(), number=1, repeat=_PASSES)
    )
