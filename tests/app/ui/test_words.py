"""Figures in plain words: below a reply and in the panel."""

import re

import pytest
from rich.text import Text

from specchat.app.ui.rendering.figures import definitions
from specchat.app.ui.widgets.card import Card
from specchat.app.ui.widgets.panel import AcceptanceCard
from specchat.engine import FinishReason
from tests.app.stage import Stage, lines_of
from tests.app.views import WIDE, answering, reply_of


async def test_the_line_below_a_reply_and_the_panel_speak_plainly(stage: Stage) -> None:
    async with answering(stage, None, (150, 40)) as (_pilot, screen):
        metrics = reply_of(screen).metrics
        (line,) = [line for line in lines_of(stage) if "tok/s" in line]
        assert f"{metrics.acceptance * 100:.0f} % accepted · {metrics.tokens_per_second:.1f} tok/s" in line
        assert reply_of(screen).reason is FinishReason.LENGTH
        assert line.strip().startswith("… token limit")  # which is no success
        panel = " ".join(row.plain for row in screen.query_one(AcceptanceCard).rows())
        total, accepted, rejected, discarded = map(
            int,
            re.search(r"(\d+) drafted: (\d+) accepted, (\d+) rejected, (\d+) discarded", panel).groups(),  # type: ignore[union-attr]
        )
        assert total == accepted + rejected + discarded == sum(record.verified for record in reply_of(screen).rounds)
        assert (accepted, rejected) == (metrics.accepted, metrics.tested - metrics.accepted)


async def test_every_label_of_panel_and_inspector_is_defined(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    labels, row = set(), Card.row

    def noted(card: Card, name: str, *rest: str) -> Text:
        labels.add(name)
        return row(card, name, *rest)

    monkeypatch.setattr(Card, "row", noted)
    async with stage.started(WIDE, events=None) as pilot:
        await stage.press(pilot, "ctrl+l")
    assert {"predicted", "verifying several tokens", "target", "round ended"} <= labels
    assert labels <= {figure.label for figure in definitions("figures")}
