"""One pass over prompts through the engine, with so many requests running at once."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from itertools import count

from engine.bench.plan import Variant
from engine.bench.prompts import Prompt
from engine.bench.tally import Tally, tally
from engine.engine import Engine
from engine.errors import EngineError
from engine.events import Event, Finished, FinishReason, Round
from engine.outbox import Outbox
from engine.request import Request, Sampling

_POLL_S = 0.005
"""Between looks at the outbox: waiting on it would wake this thread every round and slow the one that is measured."""
_numbers = count()


def run_pass(
    engine: Engine, variant: Variant, prompts: Sequence[Prompt], batch: int, sampling: Sampling, max_tokens: int
) -> list[list[Event]]:
    """Run every prompt, `batch` at once; a new one starts when one has ended.

    Returns:
        The events of each prompt's request.

    Raises:
        EngineError: a request failed.
    """
    waiting = deque(enumerate(prompts))
    outbox = Outbox()
    events: list[list[Event]] = [[] for _ in prompts]
    running: dict[str, int] = {}
    while waiting or running:
        while waiting and len(running) < batch:
            index, prompt = waiting.popleft()
            request = _request(variant, prompt, sampling, max_tokens)
            running[request.request_id] = index
            engine.submit(request, outbox)
        for event in outbox.drain():
            request_id = getattr(event, "request_id", None)
            if request_id not in running:
                continue
            events[running[request_id]].append(event)
            if isinstance(event, Finished):
                _check(event)
                del running[request_id]
        time.sleep(_POLL_S)
    return events


def measure(
    engine: Engine, variant: Variant, prompts: Sequence[Prompt], batch: int, sampling: Sampling, max_tokens: int
) -> Tally:
    """`run_pass`, counted."""
    passed = run_pass(engine, variant, prompts, batch, sampling, max_tokens)
    return tally((event for events in passed for event in events), batch)


def reply(events: Sequence[Event]) -> list[int]:
    """The tokens of one request's reply."""
    return [token for event in events if isinstance(event, Round) for token in event.emitted]


def _request(variant: Variant, prompt: Prompt, sampling: Sampling, max_tokens: int) -> Request:
    return Request(
        f"bench-{next(_numbers)}",
        messages=prompt.messages,
        prompt_ids=prompt.ids,
        sampling=sampling,
        drafter=variant.drafter,
        gamma=variant.gamma,
        max_tokens=max_tokens,
    )


def _check(event: Finished) -> None:
    if event.reason is FinishReason.ERROR:
        raise EngineError(event.message)
    if event.reason is FinishReason.CANCELLED:
        raise EngineError("the run was cancelled: start it again")
