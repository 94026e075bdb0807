"""A drafter is a plug: whatever it raises or gives costs the draft, not the reply."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from specchat.engine import (
    Engine,
    EngineConfig,
    Notice,
    Round,
)
from specchat.engine.progress import Progress
from specchat.engine.sequence.sequence import SequenceState
from specchat.engine.speculation.drafters.ngram import NGramDrafter
from specchat.engine.speculation.gamma.budget import Budget
from specchat.engine.speculation.proposal import Draft
from specchat.engine.worker.assembly import Assembly, put_together
from tests.engine.tiny import ask, ids_of, tiny_model


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
        "this reply goes on without drafts"
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

    def admit(self, row: SequenceState) -> None:
        if self.where == "admit":
            raise KeyError("no room")
        super().admit(row)

    def observe(self, row: SequenceState, emitted: Sequence[int]) -> None:
        if self.where == "observe":
            raise KeyError("no idea")
        super().observe(row, emitted)

    def release(self, row: SequenceState) -> None:
        raise KeyError(row.request.request_id)


@pytest.mark.parametrize("where", ["admit", "observe", "release"])
def test_a_drafter_that_raises_anywhere_costs_the_draft_not_the_reply(where: str) -> None:
    target = tiny_model()

    def assemble(config: EngineConfig, progress: Progress) -> Assembly:  # noqa: ARG001
        made = put_together(config, target, None)
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
