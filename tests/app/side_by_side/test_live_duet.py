"""The lanes of a live engine as the app's sources, on a model of random weights."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from specchat.app.chat.archive import NoArchive
from specchat.app.settings.settings import Settings
from specchat.app.side_by_side.duet import Duet, SideOptions, live_duet
from specchat.engine import Died, Record
from tests.app.side_by_side.test_attached_duet import ask


@pytest.fixture
def duet(model: Path) -> Iterator[Duet]:
    settings = Settings(target=str(model), dtype="float32", max_tokens=30)
    duet = live_duet(settings, SideOptions("none", "ngram:gamma=3"))
    duet.connect(NoArchive())
    yield duet
    duet.end()


def test_both_lanes_answer_turn_after_turn(duet: Duet) -> None:
    for turn, prompt in enumerate(("abcabcabc", "the same again")):
        ask(duet, prompt)
        assert duet.comparison.identical
        assert [len(duet.lanes[side].tally.tokens) for side in (0, 1)] == [30, 30]
        assert duet.lanes[1].tally.passes <= 30
        assert [len(conversation.prompts) for conversation in duet.conversations] == [turn + 1] * 2
    assert duet.lanes[0].tally.metrics.reused_tokens == duet.lanes[1].tally.metrics.reused_tokens
    assert duet.gap is None


def test_a_model_that_cannot_be_loaded_is_said_once(tmp_path: Path) -> None:
    duet = live_duet(Settings(target=str(tmp_path / "nowhere")), SideOptions())
    duet.connect(NoArchive())
    said: list[Record] = []
    while not any(isinstance(record, Died) for record in said):
        said += duet.drain()
    assert "nowhere" in said[-1].message  # type: ignore[union-attr]
    duet.end()
