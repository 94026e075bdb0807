"""The theory screen: for the reply on screen, and the paper's figures."""

from collections.abc import Callable

import pytest
from textual.pilot import Pilot
from textual.widgets import Static

from specchat.app.ui.screens.theory import TheoryScreen
from specchat.engine import MAX_GAMMA, optimal_gamma
from tests.app.stage import Stage, run
from tests.app.views import answered

pytestmark = pytest.mark.slow


async def of_reply(stage: Stage, pilot: Pilot[None]) -> None:
    await answered(stage, pilot, None)
    await stage.press(pilot, "ctrl+l", "h")


@pytest.mark.parametrize("size", [(140, 40), (80, 24)], ids=["wide", "narrow"])
def test_of_a_reply(snap_compare: Callable[..., bool], stage: Stage, size: tuple[int, int]) -> None:
    assert snap_compare(stage.app, terminal_size=size, run_before=run(stage, of_reply))


def test_figure_4(snap_compare: Callable[..., bool], stage: Stage) -> None:
    assert snap_compare(stage.app, terminal_size=(110, 30), run_before=run(stage, of_reply, *["right"] * 3))


async def test_its_figures_are_the_reply_s(stage: Stage) -> None:
    async with stage.after(of_reply, (140, 40)):
        figures = stage.app.chat_screen.reply.figures
        assert figures.metrics.alpha is not None
        best = optimal_gamma(figures.metrics.alpha, figures.gain.c, MAX_GAMMA)
        caption = str(stage.app.screen.query_one("#theory-caption", Static).render())
        assert f"α {figures.metrics.alpha:.2f} · c {figures.gain.c:.3f} · best γ {best}" in caption
        assert f"measured {figures.gain.measured:.2f}×" in caption


async def test_without_a_draft_the_curves_are_an_example(stage: Stage) -> None:
    async with stage.started((140, 40)) as pilot:
        await stage.press(pilot, *"/theory", "enter")
        assert isinstance(stage.app.screen, TheoryScreen)
        caption = str(stage.app.screen.query_one("#theory-caption", Static).render())
        assert "an example, as nothing has been drafted yet" in caption
        await stage.press(pilot, "escape")
        assert stage.app.screen is stage.app.chat_screen
