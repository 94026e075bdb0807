"""Replies of other servers on screen: what is observed is coloured, what is not said looks unknown.

The trace comes from a llama.cpp server: specchat ask --attach URL --trace.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from textual.pilot import Pilot

from specchat.app.ui.widgets.panel import AcceptanceCard, SetUpCard, Speed
from specchat.app.ui.widgets.timeline import Timeline
from specchat.engine import Admitted, Finished, FinishReason, Message, Ready, Request, Step, Totals
from tests.app.stage import Stage, lines_of, run, screen_strips
from tests.app.views import text_of
from tests.engine.records import observed_round

READY = Ready("m", None, ("observed",), "", "", "", 0, 0, 0, 0, 0.0, observed="vLLM")
TOKENS = ("One", " two", " three", " four", " five")
CAME = tuple(observed_round(None, text, number=n, at=1.0 + n / 10) for n, text in enumerate(TOKENS))
ENDED = Finished("r", FinishReason.EOS, "", "", 2.0)


def stage_of(folder: Path, totals: Totals) -> Stage:
    """The app on a server that tells at the end."""
    asked = Request("r", (Message("user", "Count."),))
    return Stage(folder, records=[READY, asked, Admitted("r", 0, 0, 0.0, 0.9), *CAME, totals, ENDED])


def said(stage: Stage, card: type) -> str:
    return text_of(stage.app.screen.query_one(card))


def test_llama_cpp(snap_compare: Callable[..., bool], tmp_path: Path) -> None:
    stage = Stage(tmp_path, name="observed")

    async def answered(stage: Stage, pilot: Pilot[None]) -> None:
        await stage.ready(pilot)
        await stage.answer(pilot, text="Name three rivers, and say one sentence about each.")

    assert snap_compare(stage.app, terminal_size=(140, 40), run_before=run(stage, answered))


async def test_tokens_are_told_apart_when_the_server_tells(tmp_path: Path) -> None:
    stage = stage_of(tmp_path, Totals("r", 2.0, 9, 5, 3, 6, 2, (Step(3, 2), Step(3, 0))))
    async with stage.started((140, 40)) as pilot:
        await stage.answer(pilot, 1 + len(CAME))
        assert "the server does not report its drafts" in " ".join(said(stage, AcceptanceCard).split())
        await stage.press(pilot, "f6")
        assert any("unknown" in line for line in _screen(stage))
        timeline = stage.app.chat_screen.query_one(Timeline)
        stage.engine.give(1)  # what it tells comes before the end of the reply
        stage.app.pump.run()
        timeline.render_line(0)
        timeline.action_pick_end(-1)
        await stage.give(pilot)
        (reply,) = [turn.reply for turn in stage.app.chat_screen.conversation.prompts]
        assert [(len(r.drafted), r.accepted) for r in reply.rounds] == [(0, 0), (3, 2), (3, 0)]
        await stage.press(pilot, "escape")
        assert "50 % accepted / tested" in said(stage, AcceptanceCard)
        assert "observed" in said(stage, Speed)
        assert "vLLM" in said(stage, SetUpCard)
        assert any("One two three┊ four" in line for line in lines_of(stage))


async def test_a_name_with_line_ends_stays_on_its_line(tmp_path: Path) -> None:
    stage = Stage(tmp_path, records=[replace(READY, target="m\nn\to")])
    async with stage.started((80, 24), "ctrl+g"):
        card = stage.app.screen.query_one(SetUpCard)
        drawn = [card.render_line(y).text for y in range(card.size.height)]
        assert sum(line.startswith("target       m↵n⇥o ") for line in drawn) == 1
        assert not set("".join(drawn)) & set("\n\t")


def _screen(stage: Stage) -> list[str]:
    return [strip.text for strip in screen_strips(stage.app)]
