"""How replies look: nothing a terminal acts on, and every fate in its style."""

import re
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import ANY

import pyte
import pytest
from rich.style import Style

from specchat.app.cli.printers import ColourPrinter, JsonPrinter, PlainPrinter
from specchat.app.sanitize import escape_controls
from specchat.engine import Admitted, Finished, FinishReason, Record, Round, Thinking
from tests.app.cli.commands.command import Output
from tests.app.recorded import events_of_requests
from tests.app.thinking import thinking_trace
from tests.engine.records import make_round


def printed(make_printer: Callable[..., PlainPrinter | JsonPrinter], *events: Any) -> str:
    out = Output(terminal=True)
    with redirect_stdout(out):
        printer = make_printer()
        for event in events:
            printer.finish(event) if isinstance(event, Finished) else printer.add(event)
    return out.text


HOSTILE = "\x1b[31m\x9b1m\x07\u202e\r"
PARTS = ("thought", "answer")
END = Finished("r", FinishReason.EOS, "", "", 2.0)


@pytest.mark.parametrize("printer_type", [PlainPrinter, ColourPrinter])
def test_no_printer_lets_escapes_through(printer_type: type[PlainPrinter], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")  # so that none are the printer's own
    event = replace(make_round(drafted=1), pieces=(HOSTILE,), last_piece=HOSTILE)
    shown = printed(printer_type, event, Finished("r", FinishReason.EOS, HOSTILE, "", 2.0))
    assert shown == escape_controls(HOSTILE) * 3 + "\n"


@pytest.fixture
def colours(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    Style.parse.cache_clear()  # rich's styles remember the codes of the first terminal they were drawn on
    return monkeypatch


def looks(text: str) -> dict[str, tuple[str, bool, bool]]:
    """Colour, boldness and underlining of each word as a terminal draws it."""
    screen = pyte.Screen(80, 5)
    pyte.Stream(screen).feed(text)
    cells = [screen.buffer[0][column] for column in range(80)]
    words = screen.display[0].split()
    starts = {word: screen.display[0].index(word) for word in words}
    return {word: (cells[at].fg, cells[at].bold, cells[at].underscore) for word, at in starts.items()}


def one_of_each() -> tuple[Round, ...]:
    rejected = make_round(drafted=3, accepted=1, rejected=True)
    return (
        replace(rejected, pieces=("kept ", "refused ", "unjudged "), last_piece="corrected "),
        replace(make_round(drafted=1), pieces=("fine ",), last_piece="extra "),
        replace(make_round(drafted=0), last_piece="plain "),
    )


@pytest.mark.parametrize("without", [False, True])
def test_every_emitted_token_has_the_style_of_its_fate(colours: pytest.MonkeyPatch, without: bool) -> None:
    if without:
        colours.setenv("NO_COLOR", "1")
    seen = looks(printed(ColourPrinter, *one_of_each(), END))
    expected = {
        "kept": ("009e73", False, False), "corrected": ("e69f00", False, True), "fine": ("009e73", False, False),
        "extra": ("56b4e9", True, False), "plain": ("default", False, False),
    }  # fmt: skip
    assert seen == {word: ("default", *look[1:]) if without else look for word, look in expected.items()}


def first_reply(records: list[Record]) -> list[Record]:
    """What a printer gets of the first reply of a trace."""
    return [event for event in events_of_requests(records)[0] if isinstance(event, Admitted | Round | Finished)]


@pytest.mark.parametrize("printer_type", [PlainPrinter, ColourPrinter])
@pytest.mark.parametrize("begun", [False, True])
def test_thinking_is_kept_out_of_stdout_and_a_terminal_is_told_how_much_it_was(
    printer_type: type[PlainPrinter], begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")  # no colours: the text alone counts
    monkeypatch.setenv("COLUMNS", "10000")  # no line is wrapped
    events = first_reply(thinking_trace(markers=Thinking("<think>", "</think>", begun)))
    thought, answer = ("".join(getattr(each, part) for each in events if isinstance(each, Round)) for part in PARTS)
    for terminal in (True, False):
        errors = Output(terminal=terminal)
        monkeypatch.setattr("sys.stderr", errors)
        assert printed(printer_type, *events).strip() == escape_controls(answer).strip()
        assert re.findall(r"thought · (\d+) tokens · \d+\.\d s", errors.text) == ([ANY] if terminal else [])
        assert thought.strip() not in errors.text
    shown = printed(partial(printer_type, thinking=True), *events)
    assert [part.strip() for part in shown.split("\n\n", 1)] == [escape_controls(thought).strip(), answer.strip()]
