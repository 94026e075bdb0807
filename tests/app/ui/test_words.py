"""Figures in plain words: a sentence and a picture for each."""

from __future__ import annotations

import re

from specchat.app.ui.rendering.figures import summary
from specchat.app.ui.widgets.panel import AcceptanceCard
from specchat.engine import FinishReason, Metrics, Round
from tests.app.recorded import trace
from tests.app.stage import Stage, lines_of
from tests.app.views import WIDE, answered, reply_of


def test_the_plain_words_are_as_many_as_there_is_room_for() -> None:
    metrics = Metrics()
    for record in trace():
        if isinstance(record, Round):
            metrics.add(record)
    said = {room: summary(metrics, room)[1] for room in (90, 48, 20)}
    tau = f"τ {metrics.mean_emitted_length:.1f}"
    assert said[90] == said[48] == f"{tau} tokens per round"
    assert said[20] == tau


async def test_the_line_below_a_reply_and_the_panel_speak_plainly(stage: Stage) -> None:
    async with stage.app.run_test(size=WIDE) as pilot:
        screen = await answered(stage, pilot, None)
        metrics = reply_of(screen).metrics
        (line,) = [line for line in lines_of(stage) if "tok/s" in line]
        assert f"τ {metrics.mean_emitted_length:.1f}" in line
        assert reply_of(screen).reason is FinishReason.LENGTH
        assert line.strip().startswith("… token limit")  # which is no success
        panel = " ".join(row.plain for row in screen.query_one(AcceptanceCard).rows())
        total, accepted, rejected, discarded = map(
            int,
            re.search(r"(\d+) drafted: (\d+) accepted, (\d+) rejected, (\d+) discarded", panel).groups(),  # type: ignore[union-attr]
        )
        assert total == accepted + rejected + discarded == sum(record.verified for record in reply_of(screen).rounds)
        assert (accepted, rejected) == (metrics.accepted, metrics.tested - metrics.accepted)
