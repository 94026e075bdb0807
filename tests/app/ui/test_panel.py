"""The panel and single widgets: headline, setup, plain words, drafts by name, header, text areas; keys of figures."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.text import Text
from textual.app import App, ComposeResult
from textual.widgets import Static, TextArea

from specchat.app.chat.reply import Reply
from specchat.app.ui.rendering.figures import clock_time, definitions
from specchat.app.ui.screens.help import DefinitionsScreen
from specchat.app.ui.widgets.card import Card
from specchat.app.ui.widgets.composer import Composer, WrappedArea
from specchat.app.ui.widgets.inspector import PlaceCard
from specchat.app.ui.widgets.key_bar import KeyBar
from specchat.app.ui.widgets.panel import AcceptanceCard, Panel, SetUpCard, Speed
from specchat.engine import Proposer, Record, Round
from tests.app.recorded import trace
from tests.app.stage import Stage, lines_of
from tests.app.views import NARROW, WIDE, Replay, answered, answering, reply_of, screen_of
from tests.engine.records import make_round


@pytest.mark.parametrize("size", [WIDE, NARROW])
async def test_the_setup_folds(stage: Stage, size: tuple[int, int]) -> None:
    async with stage.started(size, events=None) as pilot:
        if size == NARROW:
            await stage.press(pilot, "ctrl+g")
        card = stage.app.screen.query_one(SetUpCard)
        assert (card.region.height, card.border_title) == (1, "▸ setup")
        await stage.press(pilot, "f7")
        assert card.region.height == len(card.rows()) + 2
        assert card.border_title == "▾ setup"
        await stage.click(pilot, "#setup")
        assert card.region.height == 1
        assert stage.app.screen is screen_of(stage)  # no definitions were opened


async def test_empty_panels_take_no_room_before_the_first_prompt(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    async with stage.started(WIDE) as pilot:
        screen = screen_of(stage)
        assert screen.query_one("#middle").region.width == WIDE[0]
        await stage.answer(pilot, 10)
        assert screen.query_one("#middle").region.width < WIDE[0] - 60
        await stage.press(pilot, "ctrl+n")
        assert not screen.query_one(Panel).display
        assert screen.query_one("#chats").display


async def test_a_narrow_panel_has_the_setup_before_the_first_prompt(stage: Stage) -> None:
    async with stage.started(NARROW, "ctrl+g"):
        shown = [card for card in (Speed, AcceptanceCard, SetUpCard) if stage.app.screen.query_one(card).region]
        assert shown == [SetUpCard]


async def test_every_label_of_panel_and_inspector_is_defined(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    labels, row = set(), Card.row

    def noted(card: Card, name: str, *rest: str) -> Text:
        labels.add(name)
        return row(card, name, *rest)

    monkeypatch.setattr(Card, "row", noted)
    async with stage.started(WIDE, "ctrl+l", events=None):
        pass
    assert {"predicted", "verifying several tokens", "target", "round ended"} <= labels
    assert labels <= {figure.label for figure in definitions("figures")}


async def test_figure_1_has_a_line_for_each_round(stage: Stage) -> None:
    async with answering(stage, 20) as (pilot, screen):
        await stage.press(pilot, "ctrl+l", "l")
        numbers = [line[:4].strip() for line in lines_of(stage)]
        assert [n for n in numbers if n.isdigit()] == [str(r.number + 1) for r in reply_of(screen).rounds]
        await stage.press(pilot, "l")
        assert not any(line[:4].strip().isdigit() for line in lines_of(stage))


async def test_definitions_by_key_and_by_click(stage: Stage) -> None:
    async with stage.after(answered, WIDE) as pilot:
        assert isinstance(await stage.press(pilot, "ctrl+l", "d"), DefinitionsScreen)
        await stage.press(pilot, "escape", "escape")
        await stage.click(pilot, "#acceptance")
        assert isinstance(stage.app.screen, DefinitionsScreen)


async def test_a_replay_offers_no_fork() -> None:
    async with Replay().started(0.6, "f6") as (replay, _pilot):
        shown = replay.screen.query_one(KeyBar).keys
        assert replay.screen.transcript.spot is not None
        assert "fork here" not in {key.description for key in shown}


LONG, SHORT = "a-draft-model-with-a-long-name-135M-Instruct", "small"


def records_of_two_drafts() -> list[Record]:
    """A recorded chat in which another draft agrees with the first half of what was drafted."""
    return [with_two(record) if isinstance(record, Round) else record for record in trace("chat")]


def with_two(record: Round) -> Round:
    count = len(record.drafted)
    proposers = (Proposer(LONG, count, count), Proposer(SHORT, count, count // 2)) if count else ()
    return replace(record, proposers=proposers)


@pytest.mark.parametrize("drafter", ["combined", "merged"])
async def test_lines_are_kept_for_several_drafts(tmp_path: Path, drafter: str) -> None:
    records = [
        replace(record, drafter=drafter) if isinstance(record, Round) else record for record in records_of_two_drafts()
    ]
    stage = Stage(tmp_path, records=records, drafter=drafter, draft="one,other")
    async with stage.started(WIDE, events=0) as pilot:
        card = stage.app.screen.query_one(AcceptanceCard)
        height = card.size.height
        await stage.give(pilot, 30)
        assert len(card.metrics.by_draft) == 2
        assert card.size.height == height


async def test_the_panel_of_a_chat_as_it_comes_fits_the_screen(tmp_path: Path) -> None:
    stage = Stage(tmp_path, name="usual", drafter="combined")
    async with stage.started(WIDE, events=0) as pilot:
        panel = stage.app.screen.query_one(Panel)
        for rounds in (0, 10, 40):
            await stage.give(pilot, rounds)
            panel.show_load("", 0.08)
            await pilot.pause()
            assert panel.max_scroll_y == 0
        assert len(panel.query_one(AcceptanceCard).metrics.by_draft) == 2


async def test_the_drafts_of_a_token_and_what_each_is_worth(tmp_path: Path) -> None:
    stage = Stage(tmp_path, records=records_of_two_drafts())
    async with answering(stage) as (pilot, screen):
        reply, card = reply_of(screen), screen.query_one(AcceptanceCard)
        for name, (tested, kept) in reply.metrics.by_draft.items():
            (line,) = [row.plain for row in card.rows() if row.plain.startswith(name[:8])]
            assert line.endswith(f" {kept / tested * 100:.0f} % of {tested}")
            assert cell_len(line) <= card.inner
        assert list(reply.metrics.by_draft) == [LONG, SHORT]
        await stage.press(pilot, "f6")
        transcript, place = screen.transcript, screen.query_one(PlaceCard)
        seen = set()
        for _ in range(4):
            record, token = reply.token(transcript.spot.token)
            named = [row.plain.split()[-1] for row in place.rows() if row.plain.startswith("proposed by")]
            count = len(record.drafted)
            assert len(named) == (token.place < count) + (token.place < count // 2)
            assert named[1:] in ([], [SHORT])
            seen.add(len(named))
            await stage.press(pilot, "left")
        assert seen == {0, 1, 2}
        one = Reply()
        one.add(replace(make_round(), proposers=(Proposer(SHORT, 4, 4),)))
        one.take_figures()
        card.show(one)
        assert one.figures.metrics.by_draft == {SHORT: (4, 4)}
        assert not any(row.plain.startswith(SHORT) for row in card.rows())


@pytest.mark.parametrize(("lenience", "marked"), [(1.0, False), (0.5, True)])
async def test_lenience_is_marked(tmp_path: Path, lenience: float, marked: bool) -> None:
    stage = Stage(tmp_path, lenience=lenience)
    async with stage.started(NARROW):
        assert ("lossy" in str(stage.app.screen.query_one("#models", Static).content)) is marked


@pytest.mark.parametrize("make", [Composer, partial(WrappedArea, compact=True)], ids=["composer", "form"])
async def test_text_is_wrapped_again_when_the_width_changes(make: Callable[[], TextArea]) -> None:
    area = make()

    class Host(App[None]):
        def compose(self) -> ComposeResult:
            yield area

    async with Host().run_test(size=(80, 10)) as pilot:
        area.load_text("x" * 300)
        for width in (80, 77, 70, 90, 79):
            await pilot.resize_terminal(width, 10)
            await pilot.pause()
            drawn = [strip.text.strip() for strip in area.render_lines(area.size.region)]
            assert [line for line in drawn if line] == area.wrapped_document.get_sections(0)


def test_the_clock_of_a_short_replay_has_tenths() -> None:
    assert [clock_time(at, 2.31) for at in (0, 0.44, 2.31)] == ["0.0 s", "0.4 s", "2.3 s"]
    assert [clock_time(at, 75.3) for at in (0, 75.3)] == ["0:00", "1:15"]
