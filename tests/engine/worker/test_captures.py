"""CUDA graphs that are captured while requests are served, on the pretended device (`tests.engine.pretend_cuda`)."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from specchat.engine import (
    Captured,
    EngineConfig,
    Event,
    Finished,
    FinishReason,
    Loading,
    Outbox,
    Ready,
    Request,
    Round,
)
from specchat.engine.commands import Close, Command, Submit
from specchat.engine.device import graphs
from specchat.engine.errors import ClosingError
from specchat.engine.events import Clock
from specchat.engine.worker.assembly import Assembly, assemble_loaded
from specchat.engine.worker.worker import Worker
from tests.engine.backends.gpu_cases import SAMPLINGS, moved, parts, replies, replies_of
from tests.engine.pretend_cuda import PretendedGpu, parts_to_gpu, pretended_gpu
from tests.engine.tiny import ask, notices_of, tiny_model
from tests.engine.turns import Turns


class Served(Outbox):
    """Runs an engine in this thread, as the pretended device is known there alone: its events, and its graphs.

    Args:
        gpu: the device.
        drafter: of the requests, whose models are made for it.
        requests: submitted when the engine is ready.
        until: called with each event and this; the engine is closed when it is true.
        exact: as in the configuration.
    """

    def __init__(
        self,
        gpu: PretendedGpu,
        drafter: str,
        requests: Sequence[Request],
        until: Callable[[Event, Served], bool],
        *,
        exact: bool = False,
    ) -> None:
        super().__init__()
        self.gpu, self.requests, self._until = gpu, requests, until
        self.events: list[Event] = []
        self.at_start = 0  # graphs, once it is ready
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._closing = threading.Event()
        target, draft = parts(drafter)
        on_gpu, draft = parts_to_gpu(target)[0], moved(draft, parts_to_gpu)
        config = EngineConfig("tiny", Path(), slots=2, context=128, prefill_chunk=32, exact=exact, seed=5)
        worker = Worker(config, self._commands, self, Clock(), self._on_ready, lambda _: None, self._closing)
        with suppress(ClosingError):
            worker.run(lambda config, _: assemble_loaded(config, on_gpu, **draft))

    def _on_ready(self, ready: Ready, _: Assembly) -> None:
        assert ready.graphs == self.gpu.graphs
        self.ready, self.at_start = ready, ready.graphs
        for request in self.requests:
            self._commands.put(Submit(request, self, 0.0))

    def put(self, event: Event) -> None:
        """Take an event."""
        self.events.append(event)
        if self._until(event, self):
            self._closing.set()
            self._commands.put(Close())

    @property
    def ended(self) -> int:
        """Replies that have ended."""
        return sum(isinstance(event, Finished) for event in self.events)

    @property
    def replies(self) -> list[list[int]]:
        """The tokens of each."""
        return replies_of(self.requests, self.events)


def all_ended(_: Event, served: Served) -> bool:
    return served.ended == len(served.requests)


def all_captured(event: Event, _: Served) -> bool:
    return isinstance(event, Captured) and not event.left


@pytest.mark.slow
@pytest.mark.parametrize(("drafter", "sampling", "exact"), [("combined", "filtered", False), ("none", "greedy", True)])
def test_requests_are_answered_before_all_graphs_are_captured_and_with_the_same_replies(
    drafter: str, sampling: str, exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [
        ask(text, name=text, drafter=drafter, gamma=3, sampling=SAMPLINGS[sampling], max_tokens=12)
        for text in ("abababab", "the cat sat")
    ]
    expected = replies(requests, drafter)
    with pretended_gpu(monkeypatch, capture=True) as gpu:
        served = Served(gpu, drafter, requests, all_ended, exact=exact)
    between = [event for event in served.events if isinstance(event, Captured)]
    assert served.replies == expected
    assert between, "two rows are more than what is captured at start"
    assert between[-1].left > 0
    assert between[-1].graphs == gpu.graphs < 2 * served.at_start
    assert not notices_of(served.events)


def test_what_is_not_captured_at_the_start_is_when_the_worker_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    with pretended_gpu(monkeypatch, capture=True) as gpu:
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda *_: 1000 * gpu.graphs)
        served = Served(gpu, "none", [ask("abab", drafter="none", max_tokens=4)], all_captured)
    started = [event.text for event in served.events if isinstance(event, Loading)]
    assert started[-1].endswith(f": {served.at_start} captured")
    assert served.ready.graph_bytes == 1000 * served.at_start
    assert served.ready.warm_up_s > 0
    captured = [event for event in served.events if isinstance(event, Captured)]
    assert served.ended == 1
    assert [event.graphs for event in captured] == list(range(served.at_start + 1, gpu.graphs + 1))
    assert [event.graph_bytes for event in captured] == [1000 * event.graphs for event in captured]
    assert captured[-1].warm_up_s > captured[0].warm_up_s
    assert len(captured) > served.at_start


def test_an_engine_is_closed_between_two_captures_before_and_after_it_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    with pretended_gpu(monkeypatch, capture=True) as gpu:
        served = Served(gpu, "none", [], lambda *_: gpu.graphs == 2)
    assert (gpu.graphs, served.at_start) == (3, 0)
    with pretended_gpu(monkeypatch, capture=True) as gpu:
        served = Served(gpu, "none", [], lambda event, _: isinstance(event, Captured))
    assert gpu.graphs == served.at_start + 1


def test_memory_that_is_short_for_more_graphs_ends_the_captures_and_no_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [ask(text, name=text, drafter="none", max_tokens=12) for text in ("abab", "cdcd")]
    expected = replies(requests, "none")
    tried = []

    def short(run: Callable[[], object], *_: object) -> Callable[[], object]:
        tried.append(run)
        raise torch.OutOfMemoryError("CUDA out of memory")

    def at_the_first_round(event: Event, served: Served) -> bool:
        if isinstance(event, Round):
            monkeypatch.setattr(graphs, "capture", short)
        return served.ended == len(served.requests)

    with pretended_gpu(monkeypatch, capture=True) as gpu:
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
        served = Served(gpu, "none", requests, at_the_first_round)
    assert len(tried) == 1
    assert served.replies == expected
    assert {event.reason for event in served.events if isinstance(event, Finished)} == {FinishReason.LENGTH}
    assert notices_of(served.events) == [
        "tiny: its passes cannot all be captured as CUDA graphs (CUDA out of memory): it runs slower than it could"
    ]


def test_one_shape_that_cannot_be_captured_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    captured: list[object] = []

    def refuse_one(run: Callable[[], object], *_: object) -> Callable[[], object]:
        captured.append(run)
        if len(captured) == 4:
            raise RuntimeError("operation not permitted when stream is capturing")
        return gpu.captured(run)

    with pretended_gpu(monkeypatch) as gpu:
        monkeypatch.setattr(graphs, "capture", refuse_one)
        turns = Turns(parts_to_gpu(tiny_model())[0], slots=2)
        events: list[Event] = []
        for gamma in (0, 2, 4, 8, 16):
            turns.submit([ask("abababab", f"{gamma}", gamma=gamma, max_tokens=16)])
            events += turns.rest()
        notices = notices_of(events)
        assert len(captured) > 4
        assert turns.made.target.captured is not None
        assert len(notices) == 1
        assert "operation not permitted when stream is capturing" in notices[0]
