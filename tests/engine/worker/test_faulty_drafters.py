"""A drafter is a plug: whatever it raises or gives costs the draft, not the reply."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from specchat.engine import Engine, EngineConfig, Event, Progress, Round, Sampling, from_json, to_json
from specchat.engine.decoding.draft import Draft, RowOrder
from specchat.engine.decoding.drafter import Drafter
from specchat.engine.research.ngram import NGramDrafter
from specchat.engine.worker.assembly import Assembly, assemble_loaded
from tests.engine.sampled import draw_drafts_of_seeds
from tests.engine.tiny import (
    VOCABULARY,
    ask,
    ids_of,
    notices_of,
    rounds_of,
    run_together,
    tiny_engine,
    tiny_head,
    tiny_model,
)

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


class Misdrafting(NGramDrafter):
    """Damages the drafts of one request."""

    def __init__(self, damage: Callable[[RowOrder, Draft], Draft]) -> None:
        super().__init__()
        self._damage = damage

    def propose(self, orders: Sequence[RowOrder]) -> list[Draft]:
        drafts = zip(orders, super().propose(orders), strict=True)
        return [self._damage(*each) if each[0].row.request.request_id == "bad" else each[1] for each in drafts]


def with_q(total: float) -> Callable[[RowOrder, Draft], Draft]:
    """Drafts with distributions that add up to this."""

    def damage(_: RowOrder, draft: Draft) -> Draft:
        return replace(draft, q=torch.full((len(draft.tree), VOCABULARY), total / VOCABULARY))

    return damage


@contextmanager
def engine_with(ngram: Drafter, *, head: bool = False) -> Iterator[Engine]:
    """An engine whose n-gram drafter is another one."""
    target = tiny_model()

    def assemble(config: EngineConfig, progress: Progress) -> Assembly:  # noqa: ARG001
        made = assemble_loaded(config, target, head=tiny_head(target) if head else None)
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


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        pytest.param(
            lambda order, _: Draft.chain([97] * (order.gamma + 1)),
            "it drafted for 4 positions where 3 were asked for",
            id="too many positions",
        ),
        pytest.param(
            lambda _, draft: replace(draft, tokens=[*draft.tokens, 97], buckets=()),
            r"it drafted \d tokens for a tree of \d",
            id="too many tokens",
        ),
        pytest.param(
            lambda *_: Draft.chain([VOCABULARY]),
            f"it drafted a token that is none of the {VOCABULARY} of the target",
            id="an unknown token",
        ),
        pytest.param(
            lambda _, draft: replace(draft, q=torch.full((1, 5), 0.2)),
            f"its probabilities q are none of {VOCABULARY} tokens in float32 for each of its nodes",
            id="q of another vocabulary",
        ),
        pytest.param(with_q(1.5), "its probabilities q do not add up to 1", id="q that is no distribution"),
    ],
)
def test_a_draft_that_is_none_costs_its_row_the_draft_and_nothing_else(
    damage: Callable[[RowOrder, Draft], Draft], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_drafts_of_seeds(monkeypatch)  # others have no distributions
    asked = ask("abababab" * 4, "bad", drafter="ngram", gamma=3, max_tokens=40, sampling=Sampling(1.0, seed=5))
    beside = replace(asked, request_id="good", sampling=Sampling())
    with engine_with(Misdrafting(damage)) as engine:
        bad, good = run_together(engine, [asked, beside])
        plain = [ids_of(engine.stream(replace(each, drafter="none"))) for each in (asked, beside)]
    assert [ids_of(bad), ids_of(good)] == plain
    assert not notices_of(good)
    assert any(each.accepted for each in rounds_of(good))
    (told,) = notices_of(bad)
    assert re.fullmatch(rf"the ngram drafter failed \({fault}\): it drafts no more for this reply", told)
    assert {each.drafter for each in rounds_of(bad)} == {"none"}


@pytest.mark.daily(6)
@pytest.mark.parametrize("call", [1, 3])
@pytest.mark.parametrize("hook", HOOKS)
def test_a_drafter_that_raises_anywhere_costs_the_draft_not_the_reply(hook: str, call: int) -> None:
    with engine_with(Faulty(hook, call), head=hook == "on_hidden_states") as engine:
        for _ in range(2):
            events, plain = replies(engine)
            assert ids_of(events) == ids_of(plain)
            told = notices_of(events)
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
