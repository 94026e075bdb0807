"""Rounds that the kernels run in one call are the rounds that they would run one by one."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pytest

from specchat.engine.backends.packed import PackedBackend
from specchat.engine.config import EngineConfig
from specchat.engine.decoding import planner
from specchat.engine.decoding.draft import RowOrder
from specchat.engine.decoding.tree_growth import fixed_budget
from specchat.engine.engine import Engine
from specchat.engine.events import FinishReason
from specchat.engine.kernels.decoder import Decoder
from specchat.engine.kernels.library import KernelError
from specchat.engine.round import Round
from specchat.engine.sequence.sequence import SequenceState
from specchat.engine.settings import Sampling
from tests.engine.tiny import ask, ids_of, rounds_of, run_together, started, text_of

pytestmark = pytest.mark.usefixtures("kernels")
QUESTIONS = ("Name three colours.", "Tell me a story about a fox.", "How do I bake bread?", "Say ha ha ha ha ha ha ha.")
GREEDY = Sampling(seed=1)
PENALTIES = Sampling(seed=2, repetition_penalty=1.1, dry_multiplier=0.8, dry_allowed_length=1)
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"drafter": "none", "sampling": GREEDY},
    "greedy": {"drafter": "head", "gamma": 4, "sampling": GREEDY},
    "greedy, penalties": {"drafter": "head", "gamma": 4, "sampling": PENALTIES},
    "sampled": {"drafter": "head", "gamma": 4, "sampling": Sampling(1.0)},
    "filtered": {"drafter": "head", "gamma": 3, "sampling": Sampling(0.8, top_k=40, top_p=0.9)},
    "penalties": {"drafter": "head", "gamma": 3, "sampling": replace(PENALTIES, temperature=0.7, seed=None)},
    "seeded": {"drafter": "head", "gamma": 4, "sampling": Sampling(1.0, seed=3)},
    "texts": {"drafter": "suffix", "gamma": 4, "sampling": GREEDY},
    "texts and head": {"drafter": "combined", "gamma": 4, "sampling": PENALTIES},
    "texts and head, sampled": {"drafter": "combined", "gamma": 4, "sampling": Sampling(1.0)},
}


@contextmanager
def engine_of(models: Path, rounds: int) -> Iterator[Engine]:
    """An engine that may run `rounds` rounds together, however long they take."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PackedBackend, "capabilities", replace(PackedBackend.capabilities, rounds=rounds))
        patch.setattr(planner, "_LONGEST_CALL_S", 60.0)
        with started(EngineConfig("smollm2-135m", models, slots=4, context=128, seed=3)) as engine:
            yield engine


@pytest.fixture(scope="module")
def one_by_one(default_model: Path) -> Iterator[Engine]:
    with engine_of(default_model.parent, 1) as engine:
        yield engine


@pytest.fixture(scope="module")
def together(default_model: Path) -> Iterator[Engine]:
    with engine_of(default_model.parent, 4) as engine:
        yield engine


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rounds each call has run."""
    found, run = list[int](), Decoder.run_rounds

    def noted(*arguments: Any) -> int:
        found.append(run(*arguments))
        return found[-1]

    monkeypatch.setattr(Decoder, "run_rounds", noted)
    return found


@pytest.fixture
def choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows with adaptive γ draft from their ninth round on, at fixed prices."""

    orders = planner.Planner.orders

    def chosen(self: planner.Planner, rows: Sequence[SequenceState]) -> list[RowOrder]:
        made = orders(self, rows)
        self._trial = False
        for i, row in enumerate(rows):
            if row.adaptive:
                made[i] = RowOrder(row, (row.rounds >= 9) * min(row.room, 4), fixed_budget())
        return made

    monkeypatch.setattr(planner.Planner, "orders", chosen)


def replies(engine: Engine, batch: int, **about: Any) -> list[list[Any]]:
    """The events of the questions' replies, asked `batch` at once."""
    asked = [ask(text, text, **{"max_tokens": 20 + 7 * number, **about}) for number, text in enumerate(QUESTIONS)]
    return run_together(engine, asked, batch)


def decided(events: list[Any]) -> list[tuple[Any, ...]]:
    """Rounds without what differs from run to run: their times, and the rows of a round with their context."""
    untimed = {"at": 0.0, "draft_s": 0.0, "verify_s": 0.0, "rest_s": 0.0, "plain_s": 0.0, "rows": 1, "context": 0}
    return [astuple(replace(each, **untimed)) for each in events if isinstance(each, Round)]


@pytest.mark.daily(5)
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("name", SETTINGS)
def test_records_are_as_one_by_one(one_by_one: Engine, together: Engine, ran: list[int], name: str, batch: int) -> None:
    expected = replies(one_by_one, batch, **SETTINGS[name])
    assert {*ran} == {1}
    ran.clear()
    found = replies(together, batch, **SETTINGS[name])
    assert max(ran) == 4
    assert [decided(each) for each in found] == [decided(each) for each in expected]
    assert [text_of(each) for each in found] == [text_of(each) for each in expected]


@pytest.mark.usefixtures("choice")
def test_a_head_has_read_plain_rounds_before_it_drafts(one_by_one: Engine, together: Engine, ran: list[int]) -> None:
    expected = replies(one_by_one, 1, drafter="head", sampling=GREEDY)
    ran.clear()
    found = replies(together, 1, drafter="head", sampling=GREEDY)
    assert ran[:3] == [1, 4, 4]
    assert any(each.drafted for events in found for each in rounds_of(events))
    assert [decided(each) for each in found] == [decided(each) for each in expected]


def test_a_seeded_reply_does_not_depend_on_drafts_or_on_rounds_in_a_call(one_by_one: Engine, together: Engine) -> None:
    """Whether the text or the head drafts, and how much, is chosen by measured times."""
    prompt = 'Say this three times: "the quick brown fox jumps over the lazy dog and runs home".'
    accepted = 0
    for seed in range(4):
        sampling = Sampling(0.6, seed=seed)
        plain = ask(prompt, drafter="none", max_tokens=60, sampling=sampling)
        expected = ids_of(one_by_one.stream(plain))
        for engine in (one_by_one, together):
            events = list(engine.stream(replace(plain, drafter="auto")))
            accepted += sum(each.accepted for each in rounds_of(events))
            assert ids_of(events) == expected
    assert accepted


def test_a_lenient_reply_with_a_seed_repeats(together: Engine) -> None:
    """Drafts change it, so γ does not adapt."""
    asked = ask(QUESTIONS[1], max_tokens=40, sampling=Sampling(1.0, seed=0, lenience=0.5))
    first, second = (decided(list(together.stream(asked))) for _ in range(2))
    assert first == second


def test_what_a_failed_call_has_noted_is_not_taken_for_text(together: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    strong = Sampling(seed=1, repetition_penalty=2.0)
    asked = ask(QUESTIONS[1], gamma=4, max_tokens=40, sampling=strong)
    plain = ids_of(together.stream(replace(asked, drafter="none")))
    calls, run = [0], Decoder.run_rounds

    def failing(self: Decoder, rounds: Any, taps: Any = (), growing: Any = None, *others: Any) -> int:
        found = run(self, rounds, taps, growing, *others)
        calls[0] += growing is not None and found == 4
        if growing is not None and calls[0] == 2:
            raise KernelError("the last of four rounds fails")
        return found

    monkeypatch.setattr(Decoder, "run_rounds", failing)
    events = list(together.stream(replace(asked, drafter="head")))
    assert calls[0] == 2
    assert ids_of(events) == plain


def test_a_reply_ends_within_rounds_run_together_as_it_would_without(one_by_one: Engine, together: Engine) -> None:
    whole = replies(one_by_one, 1, drafter="none", max_tokens=24)
    for about in ({"drafter": "none"}, {"drafter": "head", "gamma": 4}):
        for most in (1, 4, 5, 8):
            short = replies(together, 4, max_tokens=most, **about)
            assert [ids_of(each) for each in short] == [ids_of(each)[:most] for each in whole], (about, most)
        for number, reply in enumerate(whole[:2]):
            stop = rounds_of(reply)[9].text
            until = replies(together, 4, max_tokens=24, stop=(stop,), **about)[number]
            assert until[-1].reason is FinishReason.STOP
            assert text_of(until) == text_of(reply).split(stop)[0]


def test_a_reply_goes_on_after_one_that_ended_within_rounds_run_together(together: Engine) -> None:
    """What the rounds after its end have left in the slot is not taken for a part of the text."""
    asked = ask(QUESTIONS[1], "a", drafter="head", gamma=4, max_tokens=60)
    plain = ids_of(together.stream(replace(asked, request_id="b", drafter="none", gamma=0)))
    first = list(together.stream(asked))
    stop = rounds_of(first)[5].text
    list(together.stream(replace(asked, request_id="c", stop=(stop,))))
    assert ids_of(together.stream(replace(asked, request_id="d"))) == plain == ids_of(first)


def test_a_reader_waits_for_no_more_than_one_first_round(together: Engine, ran: list[int]) -> None:
    replies(together, 4, drafter="none")
    assert ran[0] == 1
