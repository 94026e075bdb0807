"""A drafter is a plug: whatever it raises or gives costs the draft, not the reply."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from specchat.engine import (
    Engine,
    EngineConfig,
    Notice,
    Round,
    Sampling,
)
from specchat.engine.decoding.drafter import RowProfile
from specchat.engine.decoding.gamma.budget import Budget
from specchat.engine.decoding.proposal import Draft
from specchat.engine.progress import Progress
from specchat.engine.research.ngram import NGramDrafter
from specchat.engine.sequence.sequence import SequenceState
from specchat.engine.trace import from_json, to_json
from specchat.engine.worker.assembly import Assembly, put_together
from tests.engine.tiny import ask, ids_of, tiny_engine, tiny_head, tiny_model


class Faulty(NGramDrafter):
    """Raises in its third round."""

    def __init__(self) -> None:
        super().__init__()
        self.rounds = 0

    def propose(
        self, rows: Sequence[SequenceState], gammas: Sequence[int], budgets: Sequence[Budget | None] = ()
    ) -> Draft:
        self.rounds += 1
        if self.rounds == 3:
            raise RuntimeError("table on fire")
        return super().propose(rows, gammas, budgets)


class Excess(NGramDrafter):
    """Drafts more than it is asked for."""

    name = "ngram"

    def propose(
        self, rows: Sequence[SequenceState], gammas: Sequence[int], budgets: Sequence[Budget | None] = ()
    ) -> Draft:
        return super().propose(rows, [gamma + 1 for gamma in gammas], budgets)


def test_a_drafter_that_gives_more_than_was_asked_for_costs_the_draft_not_the_reply() -> None:
    target = tiny_model()

    def assemble(config: EngineConfig, progress: Progress) -> Assembly:  # noqa: ARG001
        made = put_together(config, target)
        made.drafters["ngram"] = Excess()
        return made

    engine = Engine(EngineConfig("tiny", Path(), context=256), assemble)
    engine.start()
    engine.wait_ready(60)
    events = list(engine.stream(ask("abababab" * 4, drafter="ngram", gamma=3, max_tokens=40)))
    plain = list(engine.stream(ask("abababab" * 4, drafter="none", max_tokens=40)))
    engine.close()
    told = [event.text for event in events if isinstance(event, Notice)]
    assert told == [
        "the ngram drafter failed (it drafted for 4 positions where 3 were asked for): "
        "this reply continues without drafts"
    ]
    assert ids_of(events) == ids_of(plain)


def test_a_drafter_that_raises_costs_the_draft_not_the_reply() -> None:
    target = tiny_model()

    def assemble(config: EngineConfig, progress: Progress) -> Assembly:  # noqa: ARG001
        made = put_together(config, target, None)
        made.drafters["ngram"] = Faulty()
        return made

    engine = Engine(EngineConfig("tiny", Path(), context=256), assemble)
    engine.start()
    engine.wait_ready(60)
    events = list(engine.stream(ask("abcabcabc", max_tokens=30, drafter="ngram")))
    plain = list(engine.stream(ask("abcabcabc", max_tokens=30, drafter="none")))
    engine.close()
    assert ids_of(events) == ids_of(plain)
    notices = [event for event in events if isinstance(event, Notice)]
    assert len(notices) == 1
    assert "table on fire" in notices[0].text
    assert [e.drafter for e in events if isinstance(e, Round)][-1] == "none"


class Reluctant(NGramDrafter):
    """Raises where it is told to, and when a row ends."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where

    def admit(self, row: SequenceState) -> RowProfile:
        if self.where == "admit":
            raise KeyError("no room")
        return super().admit(row)

    def on_accepted(self, row: SequenceState, emitted: Sequence[int]) -> None:
        if self.where == "on_accepted":
            raise KeyError("no idea")
        super().on_accepted(row, emitted)

    def on_hidden_states(
        self, rows: Sequence[SequenceState], states: Tensor | Sequence[Tensor], lengths: Sequence[int] | None = None
    ) -> None:
        if self.where == "on_hidden_states" and rows[0].rounds:
            raise KeyError("no room")
        super().on_hidden_states(rows, states, lengths)

    def release(self, row: SequenceState) -> None:
        raise KeyError(row.request.request_id)


@pytest.mark.parametrize("where", ["admit", "on_accepted", "release", "on_hidden_states"])
def test_a_drafter_that_raises_anywhere_costs_the_draft_not_the_reply(where: str) -> None:
    target = tiny_model()

    def assemble(config: EngineConfig, progress: Progress) -> Assembly:  # noqa: ARG001
        made = put_together(config, target, None, tiny_head(target) if where == "on_hidden_states" else None)
        made.drafters["ngram"] = Reluctant(where)
        return made

    engine = Engine(EngineConfig("tiny", Path(), context=256), assemble)
    engine.start()
    plain = ids_of(list(engine.stream(ask("abcabcabc", max_tokens=30, drafter="none"))))
    for _ in range(2):
        events = list(engine.stream(ask("abcabcabc", max_tokens=30, drafter="ngram")))
        assert ids_of(events) == plain
        assert any(isinstance(event, Notice) for event in events) == (where != "release")
    engine.close()


def test_a_draft_that_is_no_number_leaves_every_reply_to_the_target() -> None:
    """A round then gives what a plain one does: the token that the target's distribution and the seed give."""
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
