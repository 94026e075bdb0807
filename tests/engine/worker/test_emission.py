"""Records are made while the next round runs: their order, their errors, and what happens between."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from specchat.engine import Engine, Finished, FinishReason, Round
from specchat.engine.worker.records import Commit, Emission
from tests.engine.tiny import ask, ids_of, rounds_of, run_together, tiny_engine, tiny_model

PATIENCE = 60


@pytest.fixture(params=[False, True], ids=["at once", "after the launch"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """An engine on a device that blocks, and on one that computes by itself."""
    monkeypatch.setattr("specchat.engine.worker.worker.Emission", lambda held: Emission(held=held or request.param))
    with tiny_engine(draft=tiny_model(1, layers=1)) as running:
        yield running


@contextmanager
def around(owner: type, name: str, before: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Call `before` with the object whenever the method is called."""
    method = getattr(owner, name)

    def called(self: Any, *arguments: Any, **options: Any) -> Any:
        before(self)
        return method(self, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, called)
        yield


def test_rounds_before_one_that_fails_are_all_emitted(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specchat.engine.worker.records.MOST_HELD_S", PATIENCE)
    commit = Commit.of

    def fail_late(row: Any, *arguments: Any) -> Commit:
        if row.rounds == 5:
            raise ValueError("no such token")
        return commit(row, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Commit, "of", fail_late)
        *events, last = engine.stream(ask("hello", drafter="none", max_tokens=30))
    assert isinstance(last, Finished)
    assert last.reason is FinishReason.ERROR
    assert [each.number for each in events if isinstance(each, Round)] == [0, 1, 2, 3, 4]


def test_an_error_in_one_record_ends_its_row_alone(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [ask(text, text, max_tokens=30, gamma=2, drafter="model") for text in ("good", "bad", "fine")]
    alone = [ids_of(engine.stream(request)) for request in requests]

    def fail(commit: Commit) -> None:
        if commit.row.request.request_id == "bad" and commit.number == 3:
            raise ValueError("no such token")

    with around(Commit, "_record", fail, monkeypatch):
        good, bad, fine = run_together(engine, requests)
    assert [ids_of(good), ids_of(fine)] == [alone[0], alone[2]]
    assert [event.number for event in rounds_of(bad)] == [0, 1, 2], "and none after it"
    assert (bad[-1].reason, "ValueError: no such token" in bad[-1].message) == (FinishReason.ERROR, True)
    assert ids_of(engine.stream(requests[1])) == alone[1]


def test_a_cancelled_reply_has_all_records_of_its_tokens(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cancellation comes while a record is being made, so after the launch of the next pass or before it."""
    cancelled = threading.Event()

    def cancel(commit: Commit) -> None:
        if commit.number == 2:
            engine.cancel("r")
            cancelled.set()

    with around(Commit, "emit", cancel, monkeypatch):
        events = list(engine.stream(ask("on and on", max_tokens=200, gamma=2, drafter="model")))
    assert cancelled.is_set()
    assert events[-1].reason is FinishReason.CANCELLED  # type: ignore[union-attr]
    assert [event.number for event in rounds_of(events)] == list(range(len(rounds_of(events))))
    ends = [event.position + len(event.emitted) for event in rounds_of(events)]
    assert [event.position for event in rounds_of(events)][1:] == ends[:-1], "no token is missing"


def test_an_engine_that_ends_leaves_no_thread_which_would_hold_its_memory() -> None:
    before = threading.enumerate()  # of other tests
    with tiny_engine() as running:
        list(running.stream(ask("hello", max_tokens=3)))
    assert "emission" not in {thread.name for thread in threading.enumerate() if thread not in before}
