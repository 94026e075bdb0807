"""Records are made while the next round runs: their order, their errors, and what happens between."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from specchat.engine import Engine, Finished, FinishReason, Outbox, Round
from specchat.engine.backends.transformers_backend import TransformersBackend
from specchat.engine.sequence.detokenizer import Detokenizer
from specchat.engine.worker.records import Commit, Emission, Times
from specchat.engine.worker.rounds import PlainPasses
from tests.engine.tiny import ask, ended, ids_of, next_of, rounds_of, run_together, text_of, tiny_engine, tiny_model
from tests.failing import fails

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


def test_held_work_waits_for_the_launch_and_other_work_does_not() -> None:
    done: list[int] = []
    held, free = Emission(held=True), Emission(held=False)
    for number in range(3):
        held.put(lambda number=number: done.append(number))  # type: ignore[misc]
    arrived = threading.Event()
    free.put(arrived.set)
    assert arrived.wait(PATIENCE)
    assert not done
    held.finish()
    assert done == [0, 1, 2]
    held.close()
    free.put(fails(ValueError("no such thing")))
    with pytest.raises(ValueError, match="no such thing"):
        free.finish()
    free.close()


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


def test_the_next_pass_runs_before_the_last_record_is_made(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    passes, launched, made = [0], threading.Condition(), [0]

    def launch(_: object) -> None:
        with launched:
            passes[0] += 1
            launched.notify()

    def wait_for_the_next(_: object) -> None:
        made[0] += 1
        with launched:
            assert launched.wait_for(lambda: passes[0] > made[0] or passes[0] == 12, PATIENCE), "it came first"

    with (
        around(TransformersBackend, "score", launch, monkeypatch),
        around(Commit, "emit", wait_for_the_next, monkeypatch),
    ):
        events = list(engine.stream(ask("abc", max_tokens=12, gamma=0)))
    assert [event.number for event in rounds_of(events)] == list(range(12))
    times = [event.at for event in events]
    assert times == sorted(times)
    assert isinstance(events[-1], Finished)


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


def test_an_error_in_the_last_record_ends_the_row_as_an_error(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    with around(Detokenizer, "add", fails(ValueError("no text")), monkeypatch):
        events = list(engine.stream(ask("x", max_tokens=1)))
    assert [type(event) for event in events[-2:]] != [Round, Finished]
    assert events[-1].reason is FinishReason.ERROR


def test_a_stop_string_ends_the_reply_before_another_round(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = text_of(list(engine.stream(ask("hello", max_tokens=60, gamma=3, drafter="model"))))
    stop, passes = whole[8:11], []
    monkeypatch.setattr(PlainPasses, "due", lambda _self, _rows: False)
    with around(TransformersBackend, "score", passes.append, monkeypatch):
        events = list(
            engine.stream(
                ask("hello", "again", max_tokens=60, gamma=3, drafter="model", stop=(stop, "never to be found"))
            )
        )
    assert text_of(events) == whole[: whole.index(stop)]
    assert events[-1].reason is FinishReason.STOP  # type: ignore[union-attr]
    assert rounds_of(events)[-1].number + 1 == len(rounds_of(events)) == len(passes)


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


def test_a_step_shows_its_record_though_no_round_follows(engine: Engine) -> None:
    box = Outbox()
    engine.pause()
    engine.submit(ask("hello", max_tokens=40, gamma=2, drafter="model"), box)
    for number in range(3):
        engine.step()
        assert next_of(box, Round).number == number
    engine.resume()
    ended(box)


def test_no_record_is_made_while_a_plain_pass_is_timed(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would make plain decoding look slower than it is."""
    monkeypatch.setattr("specchat.engine.worker.rounds.PRICE", 0)
    monkeypatch.setattr("specchat.engine.worker.rounds.EARLY_PRICE", 0)
    commit_of, emit, committed, emitted = Commit.of, Commit.emit, list[int](), list[int]()
    seen: list[tuple[int, int]] = []

    def commit(*arguments: Any) -> Commit:
        committed.append(1)
        return commit_of(*arguments)

    def emit_slowly(made: Commit, times: Times) -> None:
        time.sleep(0.002)
        emit(made, times)
        emitted.append(1)

    monkeypatch.setattr(Commit, "of", commit)
    monkeypatch.setattr(Commit, "emit", emit_slowly)
    with around(PlainPasses, "run", lambda _: seen.append((len(committed), len(emitted))), monkeypatch):
        rounds = rounds_of(list(engine.stream(ask("abc", max_tokens=40, gamma=2, drafter="model"))))
    assert sum(event.plain_s > 0 for event in rounds) == len(seen) > 5
    assert all(before == after for before, after in seen)


def test_an_engine_that_ends_leaves_no_thread_which_would_hold_its_memory() -> None:
    before = threading.enumerate()  # of other tests
    with tiny_engine() as running:
        list(running.stream(ask("hello", max_tokens=3)))
    assert "emission" not in {thread.name for thread in threading.enumerate() if thread not in before}
