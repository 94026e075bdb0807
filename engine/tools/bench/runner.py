"""Runs requests through the engine, a given number at once."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from itertools import count

from specchat.engine.engine import Engine
from specchat.engine.errors import EngineError
from specchat.engine.events import Counted, Died, Event, Finished, FinishReason, Loading, Ready
from specchat.engine.outbox import Outbox
from specchat.engine.request import Request, Sampling
from specchat.engine.round import Round
from specchat.engine.tools.bench.plan import Variant
from specchat.engine.tools.bench.prompts import Prompt
from specchat.engine.tools.bench.tally import Tally, tally

_POLL_S = 0.005
"""Polling interval of the outbox: blocking on it would wake this thread every round and slow the engine's thread."""
_numbers = count()


def run_requests(engine: Engine, requests: Sequence[Request], batch: int) -> list[list[Event]]:
    """Run all requests, `batch` at once; a new one starts when one has ended.

    Returns:
        Events per request.

    Raises:
        EngineError: a request failed.
    """
    waiting = deque(requests)
    outbox = Outbox()
    events: dict[str, list[Event]] = {request.request_id: [] for request in requests}
    running = 0
    while waiting or running:
        while waiting and running < batch:
            engine.submit(waiting.popleft(), outbox)
            running += 1
        for event in outbox.drain():
            if isinstance(event, Loading | Ready | Counted | Died) or event.request_id is None:
                continue
            events[event.request_id].append(event)
            if isinstance(event, Finished):
                _check(event)
                running -= 1
        time.sleep(_POLL_S)
    return list(events.values())


def run_pass(
    engine: Engine, variant: Variant, prompts: Sequence[Prompt], batch: int, sampling: Sampling, max_tokens: int
) -> list[list[Event]]:
    """`run_requests` with one request per prompt."""
    return run_requests(engine, [request(variant, prompt, sampling, max_tokens) for prompt in prompts], batch)


def measure(
    engine: Engine, variant: Variant, prompts: Sequence[Prompt], batch: int, sampling: Sampling, max_tokens: int
) -> Tally:
    """Run `run_pass` and return its `Tally`."""
    passed = run_pass(engine, variant, prompts, batch, sampling, max_tokens)
    return tally((event for events in passed for event in events), batch)


def reply(events: Sequence[Event]) -> list[int]:
    """Token ids of one request's reply."""
    return [token for event in events if isinstance(event, Round) for token in event.emitted]


def request(variant: Variant, prompt: Prompt, sampling: Sampling, max_tokens: int) -> Request:
    """A request with a unique id."""
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
