"""All figures of one frame come from one snapshot of the records."""

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from textual.pilot import Pilot

from specchat.app.chat.exchange import as_json, read_chats
from specchat.app.chat.stored_conversation import stored_conversation
from specchat.app.ui.rendering.figures import summary
from specchat.app.ui.rendering.timeline import TimelineLayout, fates_of
from specchat.app.ui.widgets.inspector import PlaceCard
from specchat.app.ui.widgets.panel import AcceptanceCard, SetUpCard, Speed
from specchat.engine import Admitted, Event, Fate, Prefilled, Round, from_json
from tests.app.recorded import trace
from tests.app.stage import Stage, lines_of
from tests.app.views import WIDE, reply_of, screen_of, text_of
from tests.engine.records import make_round


def line_figures(stage: Stage) -> tuple[float | None, str] | None:
    """The measured speedup (None where it is none worth a number) and the acceptance as the line has them."""
    text = "\n".join(lines_of(stage))
    found = re.search(r"(?:([\d.]+)(× faster| % slower)|as fast as without drafts) · (\d+ %) accepted", text)
    if found is None:
        return None
    factor = float(found[1] or 0)
    return (1 - factor / 100 if found[2] == " % slower" else factor) or None, found[3]


def panel_figures(stage: Stage) -> tuple[float | None, str]:
    """The measured speedup and the acceptance as the panel has them."""
    cards = (stage.app.screen.query_one(card) for card in (AcceptanceCard, Speed))
    text = "\n".join(map(text_of, cards))
    acceptance, speedup = re.search(r"(\d+ %) accepted", text), re.search(r"measured +(?:about )?([\d.]+)×", text)
    assert acceptance
    return float(speedup[1]) if speedup else None, acceptance[1]


async def test_line_and_panel_agree_in_every_frame(stage: Stage) -> None:
    async with stage.started(WIDE, events=0) as pilot:
        seen = set()
        for number in range(96):
            if number % 4 == 0:  # figures are taken several times while the line has them
                stage.engine.give(1)
            await frame(stage, pilot)
            line = line_figures(stage)
            if line is not None:
                speedup, acceptance = panel_figures(stage)
                assert line == (line[0] and pytest.approx(speedup, abs=0.06), acceptance)
                seen.add(line)
        assert len(seen) > 1


def plain(record: Round) -> Round:
    """A round without a draft in the place of this one."""
    return make_round(drafted=0, number=record.number, at=record.at, request_id=record.request_id)


async def frame(stage: Stage, pilot: Pilot[None]) -> None:
    """One frame, once what it shows is stored."""
    await pilot.pause()
    stage.app.pump.run()
    await pilot.pause()


async def test_the_set_up_has_what_was_reused_what_this_saved_and_the_memory_for_it(stage: Stage) -> None:
    def read(event: Event, reused: int) -> Event:
        if isinstance(event, Admitted):
            return replace(event, prompt_tokens=1260, reused_tokens=reused)
        if isinstance(event, Prefilled):
            return replace(event, done=1260, total=1260, seconds=(1260 - reused) / 100)
        return event

    stage.engine.ready = replace(stage.engine.ready, kept_bytes=3_400_000_000)
    async with stage.started(WIDE) as pilot:
        shown = []
        for reused in (0, 1204):
            await stage.send(pilot)
            for events in stage.engine.open.values():
                events[:] = [read(event, reused) for event in events]
            await stage.give(pilot)
            shown.append(text_of(stage.app.screen.query_one(SetUpCard)))
        assert re.search(r"prefix cache +up to 0 kB per chat,\s+3.4 GB in all", shown[0])
        assert re.search(r"prompt +0 of 1,260 reused\n", shown[0])
        assert re.search(r"prompt +1,204 of 1,260 reused\ntime saved +at least 12.0 s\n", shown[1])
        await stage.press(pilot, "ctrl+l")
        assert "1,204 of 1,260 reused" in text_of(stage.app.screen.query_one(PlaceCard))


def views_of(stage: Stage) -> tuple[str, ...]:
    """All that line and panel say of a reply that has ended."""
    cards = (stage.app.screen.query_one(card) for card in (AcceptanceCard, Speed))
    (line,) = [line for line in lines_of(stage) if "  copy" in line]
    return line.strip(), *map(text_of, cards)


@pytest.mark.daily(2)
@pytest.mark.parametrize("name", ["chat", "tree", "usual", "lanes", "plain"])
async def test_no_view_of_a_finished_reply_contradicts_another(name: str, tmp_path: Path) -> None:
    """Line, panel, timeline and export of a reply: also of its copies in a fork, after a restart, and imported."""
    records = [plain(r) if isinstance(r, Round) else r for r in trace()] if name == "plain" else trace(name)
    stage = Stage(tmp_path, records=records, reopen="on")
    async with stage.started(WIDE, events=None) as pilot:
        views = views_of(stage)
        screen = screen_of(stage)
        live, exported = reply_of(screen), as_json(screen.conversation, "")
        timeline = TimelineLayout([live]).slots
        await stage.send(pilot, "/fork")
        await stage.settle(pilot)
        assert "fork" in screen.conversation.title
        assert views_of(stage) == views
    again = Stage(tmp_path, records=records, reopen="on")
    async with again.app.run_test(size=WIDE) as pilot:
        await again.ready(pilot)
        assert views_of(again) == views
    (chats, problems) = read_chats(exported)
    assert not problems
    ((chat, messages),) = chats
    imported = stored_conversation(chat, messages).prompts[0].reply
    assert imported is not None
    assert summary(imported.figures) == summary(live.figures)

    (told,) = json.loads(exported)["turns"][0]["replies"]
    figures, rounds = told["figures"], [from_json(json.dumps(each)) for each in told["rounds"]]
    line, acceptance, speed = views
    predicted, measured = figures["predicted_speedup"], figures["measured_speedup"]
    in_line = re.search(r"([\d.]+)× (faster|slower)|as fast as without drafts", line)
    if measured is None:
        assert in_line is None
        assert re.search(r"measured +not measured", speed)
    else:
        assert re.search(rf"measured +(about {measured:.1f}×|{measured:.2f}×).*\npredicted +{predicted:.2f}×", speed)
        assert in_line
        assert in_line[1] in (None, f"{measured:.1f}", f"{1 / measured:.1f}")
    assert f"{figures['tau']:.1f} tokens per round" in acceptance
    assert f"{figures['tokens']} tokens in {figures['rounds']} rounds" in acceptance
    assert len({(slot.left, slot.right) for slot in timeline}) == figures["rounds"] == len(rounds)
    fates = Counter(fate for record in rounds for fate in fates_of(record))
    counts = [fates[fate] for fate in (Fate.ACCEPTED, Fate.REJECTED, Fate.DISCARDED)]
    said = "{} accepted, {} rejected, {} discarded".format(*counts) if sum(counts) else "nothing drafted"
    assert said in " ".join(acceptance.split())
