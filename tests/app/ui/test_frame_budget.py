"""How often the screen is drawn while a reply runs: by what frames cost, on a clock of our own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from specchat.app.chat.reply import Stage
from specchat.app.ui.pump import FRAME_S, IDLE_S, SHARE, SLOWEST_S, FrameBudget, Pump
from specchat.engine import Record


class Processor:
    """Processor time that goes by as it is told."""

    def __init__(self) -> None:
        self.spent = 0.0

    def __call__(self) -> float:
        return self.spent


def chosen(costs: list[float], cores: int = 2) -> float:
    """Seconds between frames after frames that cost so much."""
    processor = Processor()
    budget = FrameBudget(cores, processor)
    frame_s = budget.after(Stage.ANSWERING)
    for cost in costs:
        processor.spent += cost
        frame_s = budget.after(Stage.ANSWERING)
    return frame_s


@pytest.mark.parametrize(("cost", "cores"), [(0.002, 2), (0.003, 2), (0.004, 4), (0.016, 16)])
def test_drawing_takes_its_share_of_the_cores_and_no_more(cost: float, cores: int) -> None:
    assert cost / chosen([cost] * 60, cores) == pytest.approx(SHARE * cores, rel=0.25)


def test_frames_are_never_slower_than_text_flows_nor_faster_than_can_be_seen() -> None:
    assert chosen([0.1] * 60) == pytest.approx(SLOWEST_S, rel=0.2)
    assert chosen([0.1] * 60) <= SLOWEST_S
    assert chosen([1e-5] * 60) == pytest.approx(FRAME_S, rel=0.25)
    assert chosen([1e-5] * 60) >= FRAME_S


def test_one_dear_frame_changes_little() -> None:
    usual = chosen([0.002] * 60)
    assert chosen([0.002] * 60 + [0.5]) < 1.6 * usual
    assert chosen([0.002] * 60 + [0.5] + [0.002] * 30) == pytest.approx(usual, rel=0.3)


def test_until_the_first_token_frames_are_fast_and_teach_nothing() -> None:
    processor = Processor()
    budget = FrameBudget(2, processor)
    for _ in range(60):
        processor.spent += 0.003
        budget.after(Stage.ANSWERING)
    answering = budget.after(Stage.ANSWERING)
    for stage, frame_s in ((None, IDLE_S), (Stage.WAITING, FRAME_S), (Stage.READING, FRAME_S)):
        for _ in range(60):
            processor.spent += 1e-5
            assert budget.after(stage) == frame_s
    assert budget.after(Stage.ANSWERING) == answering


def test_the_pump_follows_the_budget_and_what_it_draws_knows_how_often() -> None:
    source, timers = Source(), Timers()
    pump = Pump(timers, source, lambda _: None, lambda: None)  # type: ignore[arg-type]
    pump.start()
    pump.run()
    assert timers.running == [FRAME_S]  # no engine computes on these cores
    pump.suit("cpu")
    for stage, frame_s in ((None, IDLE_S), (Stage.READING, FRAME_S), (Stage.READING, FRAME_S), (None, IDLE_S)):
        source.stage = stage
        pump.run()
        assert timers.running == [frame_s]
        assert pump.pace.frame_s == frame_s
    assert timers.begun == 4  # a timer goes on where nothing changes
    pump.suit("cuda")
    pump.run()
    assert timers.running == [FRAME_S]


class Source:
    """Has nothing to give."""

    stage: Stage | None = None

    def drain(self) -> Iterator[Record]:
        return iter(())


class Timers:
    """Notes which timers run."""

    def __init__(self) -> None:
        self.running: list[float] = []
        self.begun = 0

    def set_interval(self, interval: float, _callback: Callable[[], None]) -> Timers:
        self.running.append(interval)
        self.begun += 1
        return self

    def stop(self) -> None:
        self.running.pop()
