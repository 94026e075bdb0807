"""Shared runner of the tools: starts an engine, submits requests, collects their events, alternates variants."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from specchat.engine.config import EngineConfig
from specchat.engine.engine import Engine
from specchat.engine.errors import EngineError, check
from specchat.engine.events import Event, Finished, FinishReason, Outbox, Ready
from specchat.engine.models.catalog import DEFAULT_PRESET
from specchat.engine.request import AUTO, Request, gamma_text
from specchat.engine.round import Round
from specchat.engine.settings import Sampling
from specchat.engine.stats.metrics import Metrics
from specchat.engine.tools.prompts import Prompt

if TYPE_CHECKING:
    from specchat.engine.worker.assembly import Assemble, Assembly

Say = Callable[[str], None]
"""Called with one-line progress messages."""
BASELINE = "none"
_POLL_S = 0.005
"""Polling interval of the outbox: blocking on it would wake this thread every round and slow the engine's thread."""
_numbers = count()
_Item = TypeVar("_Item")


class Variant(NamedTuple):
    """One way of decoding: a drafter and γ."""

    drafter: str
    gamma: int | None

    @property
    def gamma_text(self) -> str:
        """γ for display; - for plain decoding."""
        return "-" if self.drafter == BASELINE else gamma_text(self.gamma)

    @property
    def name(self) -> str:
        """Drafter and γ, for display."""
        return self.drafter if self.drafter == BASELINE else f"{self.drafter} {self.gamma_text}"


NONE = Variant(BASELINE, 0)
"""Plain decoding: the baseline of every speedup, measured in the same run."""


def choose_variants(drafters: Sequence[str], gammas: Sequence[int | None], ready: Ready) -> list[Variant]:
    """Plain decoding, then each drafter with each γ.

    Args:
        drafters: names of drafters, auto for the best one; empty for all that the engine offers.
        gammas: draft lengths, None for auto; 0 is plain decoding.
        ready: what the engine offers.

    Raises:
        EngineError: the engine has no such drafter.
    """
    drafters = [ready.drafters[0] if name == AUTO else name for name in drafters]
    for name in drafters:
        if name not in ready.drafters:
            hint = " (it needs --draft)" if name == "model" else ""
            offered = ", ".join(ready.drafters)
            raise EngineError(f"drafter {name!r} is not there{hint}: choose from {offered}")
    chosen = [name for name in dict.fromkeys(drafters or ready.drafters) if name != BASELINE]
    lengths = [gamma for gamma in dict.fromkeys(gammas) if gamma != 0]
    return [NONE, *(Variant(name, gamma) for name in chosen for gamma in lengths)]


@dataclass(frozen=True, kw_only=True)
class ToolOptions:
    """Options of every tool that loads models."""

    models: Path
    """Folder of fetched and converted models."""
    target: str | None = None
    """None for the default model."""
    draft: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    quantize: str = "auto"
    tokenizer: str | None = None
    chat_template: str | None = None
    context: int | None = None
    """Tokens of a slot; None for as many as prompts and replies need."""

    def config(self, **more: Any) -> EngineConfig:
        """Engine configuration with these options, except for fields given in `more`."""
        shared = {each.name: getattr(self, each.name) for each in fields(ToolOptions)}
        shared["target"] = self.target or DEFAULT_PRESET
        shared["chat_template"] = Path(self.chat_template) if self.chat_template else None
        return EngineConfig(**shared | more)


def require_least(**values: tuple[int | None, int]) -> None:
    """Check options that must not be less than a minimum.

    Args:
        values: for each option, its value (None if it was not given) and the minimum.

    Raises:
        EngineError: a value is too small.
    """
    for name, (value, least) in values.items():
        check(value is None or value >= least, f"{name.replace('_', '-')} is {value}: it must be at least {least}")


@contextmanager
def running(config: EngineConfig, load: Assemble | None = None) -> Iterator[tuple[Engine, Ready, Assembly]]:
    """An engine that has loaded its models and captured all CUDA graphs, and these models; closed at the end.

    Args:
        config: models, device and capacity.
        load: loads the models; None for the engine's own.

    Raises:
        EngineError: a model cannot be fetched or loaded.
    """
    with Engine(config, load) as engine:
        yield engine, engine.wait_ready(), captured(engine)


def captured(engine: Engine) -> Assembly:
    """The models of an engine, once it has captured all CUDA graphs that it has planned.

    Raises:
        EngineError: it has not loaded its models, or there is not enough memory.
    """

    def capture(made: Assembly, _slot: int) -> Generator[None, None, Assembly]:
        while made.capture_next():
            yield
        return made

    return engine.borrow(capture).result()


def run_requests(
    submit: Callable[[Request, Outbox], None], requests: Sequence[Request], batch: int
) -> list[list[Event]]:
    """Run all requests, `batch` at once; a new one starts when one has ended.

    Args:
        submit: submits a request, whose events go to the outbox.
        requests: in the order of submission.
        batch: largest number of requests that run at once.

    Returns:
        Events per request.

    Raises:
        EngineError: a request failed or was cancelled.
    """
    waiting = deque(requests)
    outbox = Outbox()
    events: dict[str, list[Event]] = {request.request_id: [] for request in requests}
    open_requests = 0
    while waiting or open_requests:
        while waiting and open_requests < batch:
            submit(waiting.popleft(), outbox)
            open_requests += 1
        for event in outbox.drain():
            if (request_id := getattr(event, "request_id", None)) in events:
                events[request_id].append(event)
            if isinstance(event, Finished):
                open_requests -= 1
                check(event.reason is not FinishReason.ERROR, event.message)
                check(event.reason is not FinishReason.CANCELLED, "the run was cancelled: start it again")
        time.sleep(_POLL_S)
    return list(events.values())


def run_pass(
    engine: Engine, variant: Variant, prompts: Sequence[Prompt], batch: int, sampling: Sampling, max_tokens: int
) -> list[list[Event]]:
    """`run_requests` with one request per prompt."""
    requests = [make_request(variant, prompt, sampling, max_tokens) for prompt in prompts]
    return run_requests(engine.submit, requests, batch)


def make_request(variant: Variant, prompt: Prompt, sampling: Sampling, max_tokens: int) -> Request:
    """A request with a unique id."""
    return Request(
        f"tool-{next(_numbers)}",
        messages=prompt.messages,
        prompt_ids=prompt.ids,
        constraint=prompt.constraint,
        sampling=sampling,
        drafter=variant.drafter,
        gamma=variant.gamma,
        max_tokens=max_tokens,
    )


def reply_tokens(events: Iterable[Event]) -> list[int]:
    """Token ids of one request's reply."""
    return [token for event in events if isinstance(event, Round) for token in event.emitted]


def metrics_of(events: Iterable[Event]) -> Metrics:
    """Metrics of the rounds among these events."""
    metrics = Metrics()
    for event in events:
        if isinstance(event, Round):
            metrics.add(event)
    return metrics


def rotated(items: Sequence[_Item], number: int) -> list[_Item]:
    """The items, beginning with item `number` mod n: in each pass another one is first."""
    start = number % len(items)
    return [*items[start:], *items[:start]]
