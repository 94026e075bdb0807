"""The lanes of a live engine as the app's sources, on a model of random weights."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specchat.app.chat.archive import NoArchive
from specchat.app.settings.settings import Settings
from specchat.app.side_by_side.duet import Duet, SideOptions, live_duet
from specchat.engine import Ready, Record

PATIENCE_S = 60.0


@pytest.fixture
def duet(tiny_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Duet]:
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path))
    settings = Settings(target=str(tiny_model(eos_token_id=0)), dtype="float32", max_tokens=30)
    duet = live_duet(settings, SideOptions("none", "ngram:gamma=3"))
    duet.connect(NoArchive())
    yield duet
    duet.end()


def drain(duet: Duet, until: Callable[[list[Record]], bool]) -> list[Record]:
    """Drain as the app does, until something holds."""
    said: list[Record] = []
    deadline = time.monotonic() + PATIENCE_S
    while not until(said):
        assert time.monotonic() < deadline, "nothing came of it"
        said += duet.drain()
        time.sleep(0.01)
    return said


def get_ready(duet: Duet) -> None:
    drain(duet, lambda said: any(isinstance(record, Ready) for record in said))
    duet.ready()


def test_both_lanes_answer_turn_after_turn(duet: Duet) -> None:
    get_ready(duet)
    for turn, prompt in enumerate(("abcabcabc", "the same again")):
        duet.send(prompt)
        drain(duet, lambda _: duet.done)
        assert duet.comparison.identical
        assert [len(duet.tally(side).tokens) for side in (0, 1)] == [30, 30]
        assert duet.tally(1).passes <= 30
        assert [len(conversation.turns) for conversation in duet.conversations] == [turn + 1] * 2
    assert duet.tally(0).metrics.reused_tokens == duet.tally(1).metrics.reused_tokens
    assert duet.gap is None


def test_a_model_that_cannot_be_loaded_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path))
    duet = live_duet(Settings(target=str(tmp_path / "nowhere")), SideOptions())
    duet.connect(NoArchive())
    said = drain(duet, lambda said: any(type(record).__name__ == "Died" for record in said))
    assert "nowhere" in said[-1].message  # type: ignore[union-attr]
    duet.end()
