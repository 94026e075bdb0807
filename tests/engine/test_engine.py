"""The engine thread on tiny models: replies, limits, prefixes, sampling."""

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from specchat.engine import (
    Engine,
    EngineConfig,
    Fate,
    LaneEngine,
    Message,
    Outbox,
    Progress,
    Request,
    Round,
    Sampling,
)
from specchat.engine.events import Admitted, Counted, Died, Finished, FinishReason, Prefilled, Ready
from specchat.engine.request import DEFAULT_GAMMA
from specchat.engine.worker.assembly import Assembly, assemble_loaded
from tests.engine.tiny import (
    EOS,
    ask,
    ended,
    ids_of,
    rounds_of,
    run_together,
    text_of,
    tiny_engine,
    tiny_model,
    tiny_tokenizer,
)
from tests.stress import TRIES
from tests.stress.requests import Stress
from tests.waiting import until

PROMPTS = ["abcabcabcabc", "hello there", "aaaa", "The quick brown fox. The quick brown fox.", "x"]


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0)], ids=["greedy", "sampled"])
def test_a_reply_has_its_events_in_order_and_adds_up(engine: Engine, sampling: Sampling) -> None:
    events = list(engine.stream(ask(f"{sampling.temperature} abcabcabc", max_tokens=60, sampling=sampling)))
    kinds = [type(event) for event in events]
    assert kinds[0] is Admitted
    assert kinds[-1] is Finished
    assert kinds.index(Prefilled) < kinds.index(Round)
    rounds = rounds_of(events)
    assert [r.number for r in rounds] == list(range(len(rounds)))
    position = events[0].prompt_tokens
    for r in rounds:
        assert r.position == position
        position += len(r.emitted)
        assert r.tested == len(r.q) == len(r.u) == len(r.beta)
        assert r.accepted <= r.tested <= len(r.drafted) <= r.gamma <= 16
        assert all(u * q < p for u, p, q in zip(r.u[: r.accepted], r.p, r.q, strict=False))
        assert min(r.draft_s, r.verify_s, r.rest_s) >= 0
        if r.last_fate is Fate.CORRECTION:
            i = r.accepted
            assert r.tested == i + 1
            assert r.u[i] * r.q[i] >= r.p[i]
            assert r.last != r.drafted[i]
    ids = ids_of(events)
    assert len(ids) == 60 or ids[-1] == EOS
    assert text_of(events) == tiny_tokenizer().decode(ids, skip_special_tokens=True)


def test_the_engines_seed_makes_replies_without_one_repeat() -> None:
    asked = [ask("abcabc", name=name, max_tokens=20, gamma=3, sampling=Sampling(temperature=1.0)) for name in "ab"]
    runs = []
    for _ in range(2):
        with tiny_engine(draft=tiny_model(1, layers=1), seed=4) as engine:
            runs.append([ids_of(engine.stream(request)) for request in asked])
    assert runs[0] == runs[1]
    assert runs[0][0] != runs[0][1], "each request has its own seed"


def test_gamma_does_not_adapt_for_a_seed_where_drafts_can_change_the_reply() -> None:
    """The width of a pass in torch changes last bits, in float32 too."""
    with tiny_engine(draft=tiny_model(1, layers=1)) as engine:
        sampling = Sampling(temperature=1.0, seed=3)
        asked = ask("abcabc", drafter="model", max_tokens=40, sampling=sampling)
        first, second = (rounds_of(engine.stream(asked)) for _ in range(2))
    assert {each.gamma for each in first[: len(first) // 2]} == {DEFAULT_GAMMA}
    assert [(each.drafted, each.last) for each in first] == [(each.drafted, each.last) for each in second]


@pytest.mark.parametrize("drafter", ["none", "ngram", "model"])
def test_a_reply_fills_the_context_to_the_last_token(drafter: str) -> None:
    with tiny_engine(draft=tiny_model(seed=9, hidden=16)) as engine:
        request = Request("r", prompt_ids=(97, 98, 99) * 70, drafter=drafter, max_tokens=10_000, gamma=6)
        events = list(engine.stream(request))
        assert events[-1].reason is FinishReason.CONTEXT
        assert len(ids_of(events)) == 256 - 210


def test_eos_inside_an_accepted_run_drops_what_follows() -> None:
    target = tiny_model()
    with tiny_engine(target, draft=target) as engine:
        ids = ids_of(engine.stream(ask("hello", drafter="none", max_tokens=20)))
        end = ids[6]
        first = ids.index(end)
    ending = tiny_model()
    object.__setattr__(ending, "eos_ids", frozenset({end}))
    with tiny_engine(ending, draft=ending) as engine:
        events = list(engine.stream(ask("hello", drafter="model", gamma=8, max_tokens=20)))
        last_round = rounds_of(events)[-1]
        assert ids_of(events) == ids[: first + 1]
        assert events[-1].reason is FinishReason.EOS
        assert last_round.last is None
        assert last_round.drafted[-1] == end
        assert last_round.tested == last_round.accepted == len(last_round.drafted)


def test_many_queued_requests_drain_in_order_without_loss() -> None:
    with tiny_engine(slots=3) as engine:
        requests = [ask(PROMPTS[i % 5], name=f"r{i}", max_tokens=1 + i % 7) for i in range(60)]
        results = run_together(engine, requests)
    assert [len(ids_of(events)) for events in results] == [1 + i % 7 for i in range(60)]
    assert {events[-1].reason for events in results} == {FinishReason.LENGTH}
    starts = [events[0].at for events in results]
    assert starts == sorted(starts)


ADJUSTED = {
    "repetition": Sampling(repetition_penalty=1.5),
    "presence": Sampling(temperature=1.0, presence_penalty=1.0),
    "frequency": Sampling(frequency_penalty=0.8),
    "bias": Sampling(logit_bias=((97, 5.0), (98, -5.0))),
}


@pytest.mark.parametrize("sampling", ADJUSTED.values(), ids=ADJUSTED.keys())
def test_penalties_and_bias_are_those_of_decoding_one_by_one(sampling: Sampling) -> None:
    """A target that is its own draft model accepts all drafts only if p and q are penalised in the same context."""
    target = tiny_model()
    with tiny_engine(target, draft=target) as engine:
        events = list(engine.stream(ask("abcabc", drafter="model", gamma=4, max_tokens=40, sampling=sampling)))
        rounds = rounds_of(events)
        assert all(r.accepted == r.tested for r in rounds)
        if sampling.greedy:
            plain = ids_of(engine.stream(ask("abcabc", drafter="none", max_tokens=40, sampling=sampling)))
            untouched = ids_of(engine.stream(ask("abcabc", drafter="none", max_tokens=40)))
            assert ids_of(events) == plain != untouched


def test_the_count_is_that_of_the_prompt_when_it_is_read() -> None:
    messages = (Message("user", "hello"), Message("assistant", "ho"), Message("user", "what else?"))
    with tiny_engine(tiny_model()) as engine:
        engine.wait_ready()
        engine.count(messages)
        counted = until(lambda: [event for event in engine.drain() if isinstance(event, Counted)])
        events = list(engine.stream(Request("r", messages, max_tokens=2)))
    assert counted[0].tokens == next(e.prompt_tokens for e in events if isinstance(e, Admitted))


@pytest.mark.parametrize("make", [Engine, lambda config, load: LaneEngine([config, config], assemble=load)])
def test_an_engine_that_is_closed_while_it_loads_ends_at_the_next_report(make: Callable[..., Engine]) -> None:
    reported, closed = threading.Event(), threading.Event()

    def load(config: EngineConfig, progress: Progress) -> Assembly:
        progress("target", "loading", 0.0)
        reported.set()
        assert closed.wait(60)
        with suppress(Exception):  # no attempt to load otherwise may catch it
            progress("target", "loading", 0.5)
        return assemble_loaded(config, tiny_model())

    engine, box = make(EngineConfig("tiny", Path(), context=64), load), Outbox()
    with engine:
        engine.submit(ask("hello"), box)
        assert reported.wait(60)
        assert not engine.close(0)
        closed.set()
        assert engine.close(60)
    assert [type(event) for event in ended(box)] == [Finished]
    assert not any(isinstance(event, Ready | Died) for event in engine.drain())


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_each_of_many_requests_ends_once_and_the_right_ones_with_the_right_text(seed: int) -> None:
    stress = Stress(150 * TRIES, seed)
    stress.run()
    assert stress.faults == []
    assert stress.counts["ended"] >= stress.counts["submitted"]
    assert stress.counts["tokens as the reference"] > 500
    assert stress.counts["bad"] > 0
