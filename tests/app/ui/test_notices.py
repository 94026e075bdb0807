"""Notices and the lines around the conversation: nothing covers, moves or is cut."""

import pytest

from specchat.app.ui.actions import views
from specchat.app.ui.widgets.bars import NoticeLine, TooSmall
from specchat.app.ui.widgets.prompt_frame import PromptFrame
from tests.app.stage import Stage

pytestmark = pytest.mark.slow

NARROW = (80, 24)


def notice(stage: Stage) -> str:
    """The line below the composer; otherwise empty."""
    line = stage.app.screen.query_one(NoticeLine)
    return str(line.content) if line.display else ""


async def test_the_newest_notice_replaces_the_older_and_covers_nothing(stage: Stage) -> None:
    async with stage.started(NARROW, events=40) as pilot:
        for sentence, severity in (("one thing", "information"), ("another one", "error")):
            stage.app.notify(sentence, severity=severity)  # type: ignore[arg-type]
            await stage.settle(pilot)
        assert notice(stage) == "✗ another one"
        line = stage.app.screen.query_one(NoticeLine)
        assert line.region.height == 1
        assert line.region.y == stage.app.screen.query_one(PromptFrame).region.bottom
        assert not any(line.region.overlaps(other.region) for other in stage.app.screen.query("#middle, KeyBar"))
        await pilot.click(NoticeLine)
        assert notice(stage) == ""


async def test_ctrl_c_twice_quits(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "QUIT_S", 3600.0)
    async with stage.started(NARROW, "ctrl+c", events=40) as pilot:
        assert stage.app.return_code is None
        assert notice(stage) == "· esc stops the reply · ^c again quits"
        await pilot.press("ctrl+c")
        assert stage.app.return_code == 0


@pytest.mark.parametrize(("size", "said"), [((40, 10), "40 × 10"), ((140, 9), "140 × 9")])
async def test_too_small_a_terminal_says_so_and_takes_text(stage: Stage, size: tuple[int, int], said: str) -> None:
    async with stage.started(NARROW, "ctrl+l", "t", events=None) as pilot:  # the composer is in another tab
        await pilot.resize_terminal(*size)
        await stage.settle(pilot)
        text = str(stage.app.screen.query_one(TooSmall).content)
        assert "48 × 12" in text
        assert said in text
        assert await stage.typed(pilot, *"hello") == "hello"
        assert stage.composer.region.size == (size[0] - 6, 1)
        assert stage.app.screen.region.contains_region(stage.composer.region)
