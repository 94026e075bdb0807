"""How often the screen is drawn while a reply runs: by what frames cost, on a simulated clock."""

import pytest

from specchat.app.chat.reply_stage import Stage
from specchat.app.ui.pump import FRAME_S, SHARE, SLOWEST_S, FrameBudget
from tests.app.recorded import Clock


def chosen(costs: list[float], cores: int = 2) -> float:
    """Seconds between frames after frames that cost so much."""
    processor = Clock()
    budget = FrameBudget(cores, processor)
    frame_s = budget.after(Stage.ANSWERING)
    for cost in costs:
        processor.now += cost
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
