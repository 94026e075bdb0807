"""Two drafters along a reply, on an engine that runs: what they had is what they have in generation."""

from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future

import pytest

from specchat.engine import Engine, EngineError, Event, Fate, Outbox, Round, Sampling
from specchat.engine.tools.evaluate import Alignment, align
from specchat.engine.worker.assembly import Assembly
from tests.engine.tiny import ask, ended, ids_of, rounds_of, tiny_engine

GAMMA = 3
PROMPT = "the dog barks at the fox at the dog"
LONG = ask("0123 0123 01", "long", max_tokens=60, drafter="ngram", gamma=GAMMA)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with tiny_engine(slots=2) as running:
        yield running


def reply_of(engine: Engine, drafter: str, **options: object) -> list[Event]:
    return list(engine.stream(ask(PROMPT, drafter=drafter, gamma=GAMMA, max_tokens=30, **options)))


def compared(engine: Engine, events: Sequence[Event], *drafters: str, **options: object) -> Future[Alignment]:
    first = next(event for event in events if isinstance(event, Round))
    request = ask(PROMPT, "again", **options)
    return align(engine, request, ids_of(events), first.position, (drafters[0], drafters[1]), GAMMA)


def test_a_drafter_has_the_tokens_that_it_had_in_generation(engine: Engine) -> None:
    replies = [reply_of(engine, drafter) for drafter in ("suffix", "ngram")]
    alignment = compared(engine, replies[0], "suffix", "ngram").result(60)
    for events, places, figures in zip(replies, alignment.places, alignment.figures, strict=True):
        rounds = rounds_of(events)
        fates = [token.fate for each in rounds for token in each.tokens()]
        said = [fate for fate in fates if fate not in (Fate.REJECTED, Fate.DISCARDED)]
        assert [place.predicted for place in places] == [fate is Fate.ACCEPTED for fate in said]
        assert figures.tau == len(said) / len(rounds)
        judged = [event.drafted[: event.tested] for event in rounds]
        assert [token for place in places for token in place.offered] == [token for each in judged for token in each]
    assert any(place.predicted for place in alignment.places[0])


def test_it_changes_nothing_for_replies_that_run_beside_it(engine: Engine) -> None:
    alone, events = ids_of(engine.stream(LONG)), reply_of(engine, "suffix")
    box = Outbox()
    engine.submit(LONG, box)
    beside = [compared(engine, events, "suffix", "copy") for _ in range(2)]
    assert ids_of(ended(box)) == alone
    first, other = (result.result(60).places for result in beside)
    assert other == first


def test_a_sampled_reply_is_judged_by_what_is_expected(engine: Engine) -> None:
    sampling = Sampling(temperature=1.0, seed=5)
    alignment = compared(engine, reply_of(engine, "suffix", sampling=sampling), "suffix", "random", sampling=sampling)
    found = alignment.result(60)
    assert found.temperature == 1.0
    assert any(0 < place.beta < 1 for place in found.places[0])
    assert all(place.predicted == (place.beta >= 0.5) for place in found.places[0])


def test_a_drafter_that_is_not_there_is_named(engine: Engine) -> None:
    with pytest.raises(EngineError, match=r"drafter 'model' is not available \(it needs --draft\): choose one of"):
        compared(engine, reply_of(engine, "suffix"), "suffix", "model").result(60)


def test_a_changed_prompt_is_reported(engine: Engine) -> None:
    result = align(engine, ask("another prompt"), [1, 2, 3], 5, ("suffix", "copy"), GAMMA)
    with pytest.raises(EngineError, match="has changed since this reply was made"):
        result.result(60)


def test_work_that_fails_costs_nothing_else(engine: Engine) -> None:
    def fails(made: Assembly, slot: int) -> Generator[None, None, None]:  # noqa: ARG001
        yield
        raise ValueError("no luck")

    with pytest.raises(EngineError, match=r"internal error \(ValueError: no luck\)"):
        engine.borrow(fails).result(60)
    assert compared(engine, reply_of(engine, "suffix"), "suffix", "copy").result(60)
