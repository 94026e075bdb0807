"""A drafter is a plug: whatever it raises or gives costs the draft, not the reply."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from specchat.engine import Engine, EngineConfig, Event, Notice, Progress, Round, Sampling, from_json, to_json
from specchat.engine.decoding.drafter import Drafter
from specchat.engine.research.ngram import NGramDrafter
from specchat.engine.worker.assembly import Assembly, put_together
from tests.engine.sampled import draw_drafts_of_seeds
from tests.engine.tiny import ask, ids_of, tiny_engine, tiny_head, tiny_model

HOOKS = ("admit", "on_accepted", "on_hidden_states", "propose", "release", "unread")


class Faulty(NGramDrafter):
    """Raises in one hook, from a call of it on."""

    def __init__(self, hook: str, call: int) -> None:
        super().__init__()
        calls, method = 0, getattr(self, hook)

        def raising(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls >= call:
                raise KeyError("table on fire")
            return method(*arguments)

        setattr(self, hook, raising)


class Excess(NGramDrafter):
    """Drafts more than it is asked for."""

    def propose(self, rows: Any, gammas: Any, budgets: Any = ()) -> Any:
        return super().propose(rows, [gamma + 1 for gamma in gammas], budgets)


@contextmanager
def engine_with(ngram: Drafter, *, head: bool = False) -> Iterator[Engine]:
    """An engine whose n-gram drafter is another one."""
    target = tiny_model()

    def assemble(config: EngineConfig, progress: Progress) -> Assembly:  # noqa: ARG001
        made = put_together(config, target, head=tiny_head(target) if head else None)
        made.drafters.built["ngram"] = ngram
        return made

    with tiny_engine(assemble=assemble) as engine:
        yield engine


def replies(engine: Engine) -> tuple[list[Event], list[Event]]:
    """Events of a reply with the faulty drafter and of one without."""
    asked = {"max_tokens": 40, "gamma": 3}
    return (
        list(engine.stream(ask("abababab" * 4, drafter="ngram", **asked))),
        list(engine.stream(ask("abababab" * 4, drafter="none", **asked))),
    )


def notices(events: list[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, Notice)]


def test_a_drafter_that_gives_more_than_was_asked_for_costs_the_draft_not_the_reply() -> None:
    with engine_with(Excess()) as engine:
        events, plain = replies(engine)
    assert notices(events) == [
        "the ngram drafter failed (it drafted for 4 positions where 3 were asked for): it drafts no more for this reply"
    ]
    assert ids_of(events) == ids_of(plain)


@pytest.mark.parametrize("call", [1, 3])
@pytest.mark.parametrize("hook", HOOKS)
def test_a_drafter_that_raises_anywhere_costs_the_draft_not_the_reply(hook: str, call: int) -> None:
    with engine_with(Faulty(hook, call), head=hook == "on_hidden_states") as engine:
        for _ in range(2):
            events, plain = replies(engine)
            assert ids_of(events) == ids_of(plain)
            told = notices(events)
            if call == 1 or hook not in ("admit", "release"):  # these are called once per reply
                assert len(told) == 1
                assert all("table on fire" in text for text in told)
            if told and hook != "release":
                assert [event.drafter for event in events if isinstance(event, Round)][-1] == "none"


def test_a_draft_that_is_no_number_leaves_every_reply_to_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round then gives what a plain one does: the token that the target's distribution and the seed give."""
    draw_drafts_of_seeds(monkeypatch)  # others have no distributions that could be NaN
    target = tiny_model(sharpness=4.0)
    drafts = [tiny_model(seed=seed, layers=1) for seed in (1, 2)]
    head = tiny_head(target)
    for network in (head.head, *(draft.model for draft in drafts)):
        for weight in network.parameters():
            weight.fill_(torch.nan)
    plain: dict[tuple[float, float], list[int]] = {}
    for options, drafters in (
        ({"draft": drafts[0], "more": drafts[1:]}, ("none", "model", "model-tree", "hierarchical", "merged")),
        ({"head": head}, ("head",)),
    ):
        with tiny_engine(target, **options) as engine:  # type: ignore[arg-type]
            for temperature, penalty in ((1.0, 1.0), (0.7, 1.3)):
                sampling = Sampling(temperature=temperature, seed=5, repetition_penalty=penalty)
                for drafter in drafters:
                    request = ask("hello", drafter=drafter, gamma=2, max_tokens=6, sampling=sampling, detail=2)
                    events = list(engine.stream(request))
                    assert ids_of(events) == plain.setdefault((temperature, penalty), ids_of(events)), drafter
                    for event in events:
                        from_json(to_json(event))
