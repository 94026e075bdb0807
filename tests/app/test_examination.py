"""What the engine computes of a finished reply is what it would have recorded."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from specchat.app.chat.archive import NoArchive
from specchat.app.chat.branches import examine
from specchat.app.chat.conversation import Conversation
from specchat.app.chat.reply import Reply
from specchat.app.chat.request_manager import RequestManager, Session
from specchat.app.settings.settings import Settings
from specchat.engine import Candidate, Detail, Engine, Fate, one_of
from tests.engine.tiny import VOCABULARY, tiny_engine, tiny_model
from tests.waiting import until

NEAR = 2e-3


def answered(requests: RequestManager, prompt: str) -> tuple[Conversation, Reply]:
    conversation = Conversation()
    return conversation, answered_in(conversation, requests, prompt)


def answered_in(conversation: Conversation, requests: RequestManager, prompt: str) -> Reply:
    requests.send(conversation, prompt)
    wait_for(requests, lambda: conversation.running is None)
    reply = conversation.prompts[-1].reply
    assert reply is not None
    return reply


def wait_for(requests: RequestManager, done: Callable[[], object]) -> None:
    until(lambda: (list(requests.drain()), done())[1])


def manager(engine: Engine, **settings: object) -> RequestManager:
    requests = RequestManager()
    engine.start = lambda: None  # type: ignore[method-assign]  # it runs already
    requests.connect(Session(engine, Settings(max_tokens=40, **settings)), NoArchive())  # type: ignore[arg-type]
    requests.ready()
    return requests


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"repetition_penalty": 1.3, "dry_multiplier": 0.8},
        {"temperature": 1.0, "seed": 4},
        {"drafter": "ngram", "temperature": 1.0, "seed": 4},
    ],
    ids=["greedy", "penalised", "sampled", "n-gram"],
)
def test_what_is_computed_is_what_is_recorded(settings: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specchat.app.chat.questions.WIDE", VOCABULARY)  # the tiny model is sure of nothing
    with tiny_engine(draft=tiny_model(1, layers=1)) as engine:
        requests = manager(engine, gamma=3, **settings)
        requests.running.detail = 8
        conversation, reply = answered(requests, "abcabcabcabc")
        recorded = {n: _recorded(reply, n) for n in range(reply.tokens)}
        reply.rounds[:] = [replace(r, detail=()) for r in reply.rounds]
        judged = [n for n in range(reply.tokens) if reply.token(n)[1].fate is not Fate.DISCARDED]
        assert {reply.token(n)[1].fate for n in judged} >= {Fate.REJECTED, Fate.CORRECTION}
        for number in judged:
            examine(requests, conversation, reply, number, 8)
        wait_for(requests, lambda: len(reply.computed) == len(judged))
        for number in judged:
            expected, computed = recorded[number], reply.computed[number]
            assert computed.note == ""
            assert computed.detail.target_entropy == pytest.approx(expected.target_entropy, abs=NEAR)
            for mine, theirs in ((computed.detail.target, expected.target), (computed.detail.draft, expected.draft)):
                assert _same(mine, theirs)
            if reply.token(number)[1].fate is Fate.CORRECTION:
                assert _same(computed.detail.residual[:3], expected.residual[:8])


def test_the_candidates_of_a_constrained_reply_are_those_that_it_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specchat.app.chat.questions.WIDE", VOCABULARY)
    with tiny_engine() as engine:
        requests = manager(engine)
        conversation = Conversation()
        conversation.constraint = one_of(["yesterday", "tomorrow"])
        reply = answered_in(conversation, requests, "abcabc")
        conversation.constraint = None  # the figures of the reply stay
        examine(requests, conversation, reply, 0, VOCABULARY)
        examine(requests, conversation, reply, 4, VOCABULARY)
        wait_for(requests, lambda: len(reply.computed) == 2)
        first, later = ([c.text for c in reply.computed[n].detail.target] for n in (0, 4))
        assert reply.text in ("yesterday", "tomorrow")
        assert {text[0] for text in first} == {"y", "t"}
        assert later == [reply.token(4)[1].text]


def test_a_reply_of_another_prompt_is_not_explained() -> None:
    with tiny_engine() as engine:
        requests = manager(engine)
        conversation, reply = answered(requests, "abcabc")
        conversation.prompts[-1].text = "something else"
        examine(requests, conversation, reply, 0, 8)
        wait_for(requests, lambda: reply.computed)
        assert reply.computed[0].detail is None
        assert "cannot be computed" in reply.computed[0].note


def _recorded(reply: Reply, number: int) -> Detail | None:
    record, token = reply.token(number)
    if token.place < record.tested:
        return record.detail[token.place]
    return record.detail[-1] if token.place == len(record.drafted) else None


def _same(mine: tuple[Candidate, ...], theirs: tuple[Candidate, ...]) -> bool:
    """Whether every listed token has the other list's probability, where that list has it."""
    known = {c.id: c.probability for c in theirs}
    return bool(mine) == bool(theirs) and all(abs(known.get(c.id, c.probability) - c.probability) < NEAR for c in mine)
